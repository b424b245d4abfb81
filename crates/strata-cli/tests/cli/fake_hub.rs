//! A model hub on this machine: the API of the real one, its files by ranges, and whatever a network does to them.
#![allow(dead_code, reason = "each of two test programs uses a part of it")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};

/// The commit that the hub is at.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request that came.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) path: String,
    /// First and last byte.
    pub(crate) range: Option<(usize, usize)>,
    pub(crate) token: Option<String>,
    /// How many came before it, but for those to the API.
    pub(crate) nth: usize,
}

/// What becomes of a request.
pub(crate) enum Reply {
    Serve,
    /// The connection breaks after so many bytes of the answer's body.
    Break(usize),
    /// Nothing more comes after so many bytes.
    Stall(usize),
    /// All of the file, whatever was asked for.
    Whole,
    /// All of the file, and the connection breaks.
    WholeBreak(usize),
    /// A refusal, with one more header.
    Refuse(u16, &'static str),
    /// Says that the file has another length.
    Length(usize),
    /// Other bytes, of the same length.
    Wrong,
    /// More bytes than asked for.
    More,
    /// Bytes from another place, and says so.
    Shifted,
    /// Somewhere else.
    Redirect(String),
}

pub(crate) struct FakeHub {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

type Files = HashMap<String, Vec<u8>>;
type Rule = dyn Fn(&Asked) -> Reply + Send + Sync;

impl FakeHub {
    /// A hub whose every repository has these files. It serves until the test program ends.
    pub(crate) fn start(files: &[(&str, &[u8])], rule: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listed: Vec<_> = files.iter().map(|(name, bytes)| (*name, bytes.len() as u64, sha256(bytes))).collect();
        let files = files.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect();
        Self::serve(listing(&listed), files, Arc::new(rule))
    }

    /// A hub that lists a file of this length, and does not have it.
    pub(crate) fn claiming(name: &str, len_bytes: u64) -> Self {
        Self::serve(listing(&[(name, len_bytes, sha256(b""))]), Files::new(), Arc::new(|_: &Asked| Reply::Serve))
    }

    fn serve(listing: String, files: Files, rule: Arc<Rule>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (served, all) = (Arc::new((listing, files)), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (served, rule, all) = (Arc::clone(&served), Arc::clone(&rule), Arc::clone(&all));
                // Who asked may be gone.
                std::thread::spawn(move || drop(answer(&stream, &served.0, &served.1, &*rule, &all)));
            }
        });
        Self { url, asked }
    }

    /// What came, but for requests to the API.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().iter().filter(|asked| !asked.path.starts_with("/api/")).cloned().collect()
    }
}

fn answer(
    stream: &TcpStream,
    listing: &str,
    files: &Files,
    rule: &Rule,
    all: &Mutex<Vec<Asked>>,
) -> std::io::Result<()> {
    let Some(asked) = read_request(stream, all)? else { return Ok(()) };
    let mut out = stream;
    let mut send = |status: &str, headers: &str, body: &[u8]| -> std::io::Result<()> {
        let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        out.write_all(head.as_bytes())?;
        out.write_all(body)
    };
    let reply = rule(&asked);
    if let Reply::Refuse(status, header) = reply {
        return send(&format!("{status} No"), header, b"no");
    }
    if asked.path.starts_with("/api/models/") {
        assert!(asked.path.ends_with("/revision/main?blobs=true"), "{asked:?}");
        return send("200 OK", "", listing.as_bytes());
    }
    let Some((_, file)) = files.iter().find(|(name, _)| asked.path.ends_with(&format!("/{name}"))) else {
        return send("404 Not Found", "", b"");
    };
    let (from, to) = asked.range.unwrap_or((0, file.len() - 1));
    let part = &file[from..=to];
    let said = |from: usize, to: usize, len: usize| format!("Content-Range: bytes {from}-{to}/{len}\r\n");
    let range = said(from, to, file.len());
    let part_head = format!("HTTP/1.1 206 P\r\nConnection: close\r\nContent-Length: {}\r\n{range}\r\n", part.len());
    match reply {
        Reply::Serve => send("206 P", &range, part),
        Reply::Break(len) | Reply::Stall(len) => {
            out.write_all(part_head.as_bytes())?;
            out.write_all(&part[..len.min(part.len())])?;
            out.flush()?;
            if matches!(reply, Reply::Stall(_)) {
                std::thread::sleep(Duration::from_secs(50));
            }
            Ok(())
        }
        Reply::Whole => send("200 OK", "", file),
        Reply::WholeBreak(len) => {
            let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", file.len());
            out.write_all(head.as_bytes())?;
            out.write_all(&file[..len.min(file.len())])
        }
        Reply::Length(len) => send("206 P", &said(from, to, len), part),
        Reply::Wrong => send("206 P", &range, &part.iter().map(|byte| byte ^ 1).collect::<Vec<_>>()),
        Reply::More => send("206 P", &range, &[part, b"more"].concat()),
        Reply::Shifted => send("206 P", &said(from + 1, to + 1, file.len()), part),
        Reply::Redirect(to) => send("302 Found", &format!("Location: {to}\r\n"), b""),
        Reply::Refuse(..) => unreachable!("it was answered"),
    }
}

fn read_request(stream: &TcpStream, all: &Mutex<Vec<Asked>>) -> std::io::Result<Option<Asked>> {
    let mut lines = BufReader::new(stream).lines();
    let Some(first) = lines.next().transpose()? else { return Ok(None) };
    let path = first.split(' ').nth(1).unwrap().to_owned();
    let (mut range, mut token) = (None, None);
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let (from, to) = value.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                range = Some((from.parse().unwrap(), to.parse().unwrap()));
            }
            "authorization" => token = Some(value.strip_prefix("Bearer ").unwrap().to_owned()),
            _ => {}
        }
    }
    let mut all = all.lock().unwrap();
    let nth = all.iter().filter(|asked| !asked.path.starts_with("/api/")).count();
    let asked = Asked { path, range, token, nth };
    all.push(asked.clone());
    Ok(Some(asked))
}

/// The repository as the real hub describes it (`GET /api/models/OWNER/REPO/revision/main?blobs=true`, shortened).
fn listing(files: &[(&str, u64, String)]) -> String {
    let sibling = |(name, len, sha): &(&str, u64, String)| {
        format!(
            r#",{{"rfilename":"{name}","size":{len},"blobId":"c0ffee1","lfs":{{"sha256":"{sha}","size":{len},"pointerSize":134}}}}"#
        )
    };
    let siblings: String = files.iter().map(sibling).collect();
    format!(
        r#"{{"id":"o/r","private":false,"sha":"{COMMIT}","siblings":[{{"rfilename":"README.md","size":3,"blobId":"beef123"}}{siblings}]}}"#
    )
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
