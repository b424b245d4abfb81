//! Bytes through a network that fails in every way.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;
use fake_hub::{FakeHub, Reply, sha256};

#[path = "../../tests/cli/fake_hub.rs"]
mod fake_hub;

const NAME: &str = "m.gguf";
/// Not a multiple of the pieces.
const LEN: usize = 10_037;
const PIECE: usize = 1000;
const CONNECTIONS: usize = 4;

fn bytes() -> Vec<u8> {
    (0..LEN).map(|i| (i * i / 7 + i) as u8).collect()
}

/// Fetches the file of a hub into a part; what is there afterwards.
fn get_with_token(hub: &FakeHub, part: &Path, token: Option<&str>) -> (Result<(), Problem>, Vec<u8>) {
    let client = Hub::new(&hub.url, token.map(str::to_owned)).unwrap();
    let what = Fetch {
        url: client.file_url("o/r", fake_hub::COMMIT, NAME),
        hub: client,
        len_bytes: LEN as u64,
        connections: CONNECTIONS,
        piece_bytes: PIECE as u64,
        patience: Patience { failures: 2, first_wait: Duration::from_millis(1), failed: 0 },
        seen: Arc::default(),
    };
    let work = async {
        let mut part = Part::open(part, LEN as u64).await?;
        fetch(what, &mut part).await?;
        part.check(Some(&sha256(&bytes())))
    };
    let result = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(work);
    (result, std::fs::read(part).unwrap_or_default())
}

fn get(hub: &FakeHub, part: &Path) -> (Result<(), Problem>, Vec<u8>) {
    get_with_token(hub, part, None)
}

/// A hub of the file, and an empty folder.
fn hub(rule: impl Fn(&fake_hub::Asked) -> Reply + Send + Sync + 'static) -> (FakeHub, tempfile::TempDir) {
    (FakeHub::start(&[(NAME, &bytes())], rule), tempfile::tempdir().unwrap())
}

fn ranges(hub: &FakeHub) -> BTreeSet<(usize, usize)> {
    hub.asked().into_iter().map(|asked| asked.range.unwrap()).collect()
}

#[test]
fn a_file_comes_in_pieces_each_asked_for_once() {
    let (hub, dir) = hub(|_| Reply::Serve);
    let (result, got) = get(&hub, &dir.path().join("part"));
    result.unwrap();
    assert!(got == bytes());
    let pieces: BTreeSet<_> = (0..LEN).step_by(PIECE).map(|from| (from, LEN.min(from + PIECE) - 1)).collect();
    assert_eq!((ranges(&hub), hub.asked().len()), (pieces, 11));
}

#[test]
fn broken_connections_cost_no_byte_that_came() {
    let (hub, dir) = hub(|asked| match asked.range.unwrap().0 % PIECE {
        0 => Reply::Break(700),
        700 => Reply::Break(250),
        _ => Reply::Serve,
    });
    let (result, got) = get(&hub, &dir.path().join("part"));
    result.unwrap();
    assert!(got == bytes());
    // Ten pieces went on twice, each where it broke; the last one is short.
    let from: BTreeSet<_> = ranges(&hub).into_iter().map(|(from, _)| from % PIECE).collect();
    assert_eq!((from, hub.asked().len()), (BTreeSet::from([0, 700, 950]), 31));
}

#[test]
fn a_server_without_ranges_serves_the_file_over_one_connection() {
    let (hub, dir) = hub(|asked| match asked.nth {
        0 | 3 => Reply::Whole,
        1 => Reply::WholeBreak(4321),
        _ => Reply::WholeBreak(100),
    });
    let (result, got) = get(&hub, &dir.path().join("part"));
    result.unwrap();
    assert!(got == bytes());
    let asked: Vec<_> = hub.asked().into_iter().map(|asked| asked.range).collect();
    assert_eq!(asked, [Some((0, PIECE - 1)), None, None, None]);
}

#[test]
fn a_server_that_lies_about_lengths_or_places_is_not_believed() {
    let lies: [fn() -> Reply; 3] = [|| Reply::Length(LEN + 1), || Reply::More, || Reply::Shifted];
    for lie in lies {
        let (hub, dir) = hub(move |_| lie());
        let (result, got) = get(&hub, &dir.path().join("part"));
        assert!(matches!(result, Err(Problem::Different(_))), "{result:?}");
        assert!(bytes().starts_with(&got) && hub.asked().len() == 1);
    }
    // All of another file.
    let hub = FakeHub::start(&[(NAME, &bytes()[1..])], |_| Reply::Whole);
    let dir = tempfile::tempdir().unwrap();
    let (result, _) = get(&hub, &dir.path().join("part"));
    assert!(result.unwrap_err().to_string().contains("has 10036 bytes, but the hub lists 10037"));
}

#[test]
fn wrong_bytes_are_found_and_removed() {
    let (hub, dir) = hub(|asked| if asked.nth == 5 { Reply::Wrong } else { Reply::Serve });
    let part = dir.path().join("part");
    let (result, _) = get(&hub, &part);
    let Err(Problem::Checksum { expected, got }) = result else { panic!("{result:?}") };
    assert!(expected == sha256(&bytes()) && got != expected && !part.exists());
    // Of an earlier try, too.
    std::fs::write(&part, b"not the beginning").unwrap();
    assert!(matches!(get(&hub, &part).0, Err(Problem::Checksum { .. })));
    assert!(get(&hub, &part).0.is_ok());
}

#[test]
fn field_report_53_a_refusal_in_the_middle_keeps_what_came_and_goes_on_later() {
    static REFUSES: AtomicBool = AtomicBool::new(true);
    let (hub, dir) = hub(|asked| match asked.range {
        Some((4000.., _)) if REFUSES.load(Ordering::Relaxed) => Reply::Refuse(403, ""),
        _ => Reply::Serve,
    });
    let part = dir.path().join("part");
    let (result, got) = get(&hub, &part);
    let problem = result.unwrap_err();
    assert!(matches!(problem, Problem::Status { status: 403, .. }), "{problem:?}");
    assert!(problem.to_string().contains("403 Forbidden"));
    let advice = problem.advice("https://hub", "o/r", false);
    assert!(advice.contains("--token") && advice.contains("https://hub/o/r") && advice.contains("mirror"), "{advice}");
    assert_eq!(got, &bytes()[..4000]);
    // It may have been a link that expired: each piece was tried again.
    let refused = hub.asked().iter().filter(|asked| asked.range.unwrap().0 == 4000).count();
    assert_eq!(refused, 3);

    REFUSES.store(false, Ordering::Relaxed);
    let before = hub.asked().len();
    let (result, got) = get(&hub, &part);
    result.unwrap();
    assert!(got == bytes());
    assert_eq!(hub.asked()[before..].iter().map(|asked| asked.range.unwrap().0).min(), Some(4000));
}

#[test]
fn a_refusal_at_once_is_told_at_once() {
    for (status, header) in [(401, ""), (403, ""), (404, ""), (429, "Retry-After: 86400\r\n"), (418, "")] {
        let (hub, dir) = hub(move |_| Reply::Refuse(status, header));
        let (result, got) = get(&hub, &dir.path().join("part"));
        assert!(matches!(result, Err(Problem::Status { status: got, .. }) if got == status), "{result:?}");
        assert_eq!((hub.asked().len(), got.len()), (1, 0), "{status}");
    }
}

#[test]
fn a_busy_server_is_waited_for() {
    let (hub, dir) = hub(|asked| match asked.nth {
        0 => Reply::Refuse(429, "Retry-After: 1\r\n"),
        1 | 5 => Reply::Refuse(503, ""),
        _ => Reply::Serve,
    });
    let (result, got) = get(&hub, &dir.path().join("part"));
    result.unwrap();
    assert!(got == bytes());
    let first = Duration::from_millis(500);
    let asks = |seconds| Problem::Status { status: 429, wait: Some(Duration::from_secs(seconds)) };
    assert_eq!(asks(7).wait(first, 1), Duration::from_secs(7));
    assert_eq!(asks(1).wait(first, 4), Duration::from_secs(4));
    assert_eq!(Problem::NoRanges.wait(first, 1), first);
    // Not for ever.
    let (hub, dir) = self::hub(|_| Reply::Refuse(500, ""));
    assert!(get(&hub, &dir.path().join("part")).0.is_err());
    assert_eq!(hub.asked().len(), 3);
}

#[test]
fn a_link_to_bytes_is_used_until_it_expires_and_gets_no_token() {
    static FIRST: AtomicBool = AtomicBool::new(true);
    let store = FakeHub::start(&[(NAME, &bytes())], |asked| match asked.nth {
        3.. if asked.path.starts_with("/link-0/") => Reply::Refuse(403, ""),
        _ => Reply::Serve,
    });
    let to = store.url.clone();
    let (hub, dir) = hub(move |_| {
        let link = if FIRST.swap(false, Ordering::Relaxed) { 0 } else { 1 };
        Reply::Redirect(format!("{to}/link-{link}/{NAME}"))
    });
    let (result, got) = get_with_token(&hub, &dir.path().join("part"), Some("secret"));
    result.unwrap();
    assert!(got == bytes());
    let asked = hub.asked();
    assert!((2..=1 + 2 * CONNECTIONS).contains(&asked.len()), "{asked:?}");
    assert!(asked.iter().all(|asked| asked.token.as_deref() == Some("secret") && asked.path.contains("/resolve/")));
    let of_store = store.asked();
    assert!(of_store.len() >= 11 && of_store.iter().all(|asked| asked.token.is_none()), "{of_store:?}");
}

#[test]
fn a_part_belongs_to_one_program_at_a_time() {
    let (hub, dir) = hub(|_| Reply::Serve);
    let path = dir.path().join("part");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let part = runtime.block_on(Part::open(&path, LEN as u64)).unwrap();
    let problem = get(&hub, &path).0.unwrap_err();
    assert!(problem.to_string().contains("another program is pulling this file"), "{problem}");
    assert_eq!(hub.asked().len(), 0);
    drop(part);
    get(&hub, &path).0.unwrap();
}
