//! `strata serve`, as a user starts and ends it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::command;

fn strata(arguments: &[&str]) -> Command {
    let mut command = command(&["serve", "--context", "512"]);
    command.args(arguments);
    command.stderr(Stdio::piped()).stdout(Stdio::null());
    command
}

struct Running {
    child: Child,
    address: String,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut child = strata(arguments).args(["--port", "0"]).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut running = Self { child, address: String::new(), stderr };
        let mut said = String::new();
        while running.address.is_empty() {
            let before = said.len();
            assert!(running.stderr.read_line(&mut said).unwrap() > 0, "it ended: {said}");
            if let Some((_, address)) = said[before..].split_once("ready at http://") {
                running.address = address.trim().to_owned();
            }
        }
        assert!(said.contains("strata: plan: "), "{said}");
        running
    }

    fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn post(&self, path: &str, headers: &str, body: &str) -> TcpStream {
        let length = body.len();
        self.send(&format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"))
    }

    fn end(mut self) -> (ExitStatus, String) {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }
}

impl Drop for Running {
    /// A test that failed leaves no server behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn all(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

const CHAT: &str =
    r#"{"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 8, "temperature": 0}"#;

#[test]
#[cfg(unix)]
fn it_answers_and_ends_well() {
    let running = Running::start(&[]);
    let whole = all(running.post("/v1/chat/completions", "", CHAT));
    assert!(whole.starts_with("HTTP/1.1 200"), "{whole}");
    let content = |text: &str| text.split("\"content\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    assert!(!content(&whole).is_empty());
    // The same text, alone or in company, whole or as a stream.
    let streamed = CHAT.replace("\"max_tokens\"", "\"stream\": true, \"max_tokens\"");
    let streams: Vec<_> = (0..3).map(|_| running.post("/v1/chat/completions", "", &streamed)).collect();
    for stream in streams {
        let text = all(stream);
        let joined: String = text.split("\"content\":\"").skip(1).map(|part| part.split('"').next().unwrap()).collect();
        assert_eq!(joined, content(&whole), "{text}");
        assert!(text.contains("data: [DONE]"), "{text}");
    }
    // Answers under way are finished before the end. What has begun to come was taken.
    let long = streamed.replace("\"max_tokens\": 8", "\"max_tokens\": 60");
    let under_way = [(); 2].map(|()| running.post("/v1/chat/completions", "", &long));
    for mut stream in &under_way {
        stream.read_exact(&mut [0; 12]).unwrap();
    }
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("ending:") && said.trim_end().ends_with("strata: ended"), "{said}");
    assert!(
        said.contains("POST /v1/chat/completions 200") && !said.contains("Once"),
        "a line a request, no texts: {said}"
    );
    for stream in under_way {
        let text = all(stream);
        assert!(text.contains("\"finish_reason\":\"") && text.contains("[DONE]"), "{text}");
    }
}

#[test]
#[cfg(unix)]
fn a_key_is_asked_for() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // With the mark that some editors begin a file with.
    std::fs::write(file.path(), "\u{feff}first\n\nsecond\n").unwrap();
    let running = Running::start(&["--api-key-file", file.path().to_str().unwrap()]);
    for (headers, status) in [
        ("", 401),
        ("authorization: Bearer third\r\n", 401),
        ("x-api-key: second\r\n", 200),
        ("x-api-key: first\r\n", 200),
    ] {
        let text = all(running.post(
            "/v1/messages/count_tokens",
            headers,
            r#"{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}"#,
        ));
        assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {text}");
    }
    assert_eq!(running.end().0.code(), Some(0));
}

/// ktransformers#2099 and others: out of memory because of one wrong flag.
#[test]
fn field_report_55_what_cannot_be_served_is_told_before_a_model_is_loaded() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let wordless = concat!(env!("CARGO_MANIFEST_DIR"), "/../strata-model/tests/data/oracle/mini4/model-f16.gguf");
    for (arguments, code, words) in [
        (vec!["--port", &port], 1, "another program uses this port"),
        (vec!["--host", "0.0.0.0", "--port", "0"], 2, "--api-key-file"),
        (vec!["--host", "nowhere.invalid"], 2, "is no address of this machine"),
        (vec!["--port", "0", "--api-key", ""], 2, "must not be empty"),
        (vec!["--parallel", "0"], 2, "at least 1"),
        (vec!["--port", "0", "--api-key", " key"], 2, "API key 1"),
        (vec!["--port", "0", "--api-key", "good", "--api-key", "schlüssel"], 2, "API key 2"),
        (vec!["--port", "0", "--cors-origin", "*"], 2, "is no origin of a page"),
        (vec!["--port", "0", "--cors-origin", "https://chat.example/page"], 2, "is no origin of a page"),
        (vec!["--port", "0", "--cors-origin", "chat.example"], 2, "is no origin of a page"),
        (vec!["--port", "0", "--name", " "], 2, "--name"),
        (vec!["-m", wordless, "--port", "0"], 1, "model-f16.gguf: this file has no tokenizer"),
    ] {
        let output = strata(&arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words) && !said.contains("plan"), "{said}");
    }
}

/// What was read in one run is known in the next one, but not to a run that would compute it in another way.
#[test]
#[cfg(unix)]
fn prefixes_in_a_folder_outlive_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let cached = |more: &[&str]| {
        let arguments = [&["--prefix-disk", folder.path().to_str().unwrap()], more].concat();
        let running = Running::start(&arguments);
        let text = "The old dog ran up the hill. ".repeat(30);
        let body =
            format!(r#"{{"messages": [{{"role": "user", "content": "{text}"}}], "max_tokens": 4, "temperature": 0}}"#);
        let answer = all(running.post("/v1/chat/completions", "", &body));
        let number = |name: &str| {
            let rest = answer.split(&format!("\"{name}\":")).nth(1).unwrap_or_else(|| panic!("{answer}"));
            rest.split([',', '}']).next().unwrap().parse::<usize>().unwrap()
        };
        let (prompt, cached) = (number("prompt_tokens"), number("cached_tokens"));
        let content = answer.split("\"content\":").nth(1).unwrap().split("\"refusal\"").next().unwrap().to_owned();
        assert_eq!(running.end().0.code(), Some(0));
        (prompt, cached, content)
    };
    let (prompt, at_first, text) = cached(&[]);
    assert!(at_first == 0 && prompt > 128, "{prompt} {at_first}");
    let (_, known, again) = cached(&[]);
    assert!(known * 20 >= prompt * 19, "{known} of {prompt}");
    assert_eq!(again, text);
    assert_eq!(cached(&["--kv", "q8_0"]).1, 0, "another form of keys and values");
}
