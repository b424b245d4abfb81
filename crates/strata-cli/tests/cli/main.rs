//! The `strata` command as a user meets it: the real program, real files, exit codes and what is printed where.

mod bench;
mod calibrate;
mod chat;
mod doctor;
mod exact;
mod fake_hub;
mod inspect;
mod interrupt;
mod plan;
mod probe;
mod pull;
mod route;
mod run;
mod serve;
mod sim;
mod streaming;
mod synth;
mod timeline;
mod tokenize;
mod usage;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The root of the repository, where commands run unless a test says otherwise.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The shipped model.
fn mini() -> PathBuf {
    root().join("models/strata-mini/strata-mini-iq2xs-q4_0.gguf")
}

/// A file of one of the small reference models, which have no tokenizer.
fn oracle(model: &str, file: &str) -> String {
    let path = root().join("crates/strata-model/tests/data/oracle").join(model).join(file);
    path.to_str().unwrap().to_owned()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    // What runs keep for later, and what they tell each other, is not the user's.
    let kept = env!("CARGO_TARGET_TMPDIR");
    command.args(args).current_dir(root()).env("XDG_CACHE_HOME", kept).env("XDG_RUNTIME_DIR", kept);
    command
}

/// What a command did.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    /// The standard output of a command that must have succeeded.
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// A failure with this exit code, nothing on standard output, and a message that names all of `parts`.
    #[track_caller]
    fn fails(self, code: i32, parts: &[&str]) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(code), ""), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "`{part}` is not in {self:?}");
        }
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// Runs a command that finds nothing on its standard input.
fn strata(args: &[&str]) -> Ran {
    strata_reads(args, b"")
}

/// Runs a command that finds `input` on its standard input.
fn strata_reads(args: &[&str], input: &[u8]) -> Ran {
    let mut command = command(args);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that failed before it read its input closes the pipe: its exit code tells more.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

/// A path as an argument.
fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}
