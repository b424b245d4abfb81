//! Over real connections: first bytes, clients that go away, large and slow requests, the end.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use strata_engine::host::Event;
use strata_server::ServerOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::script::{PLAIN, Server, says, then_silence, token};

struct Listening {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

async fn listen(server: &Server, head_time: Duration) -> Listening {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let stopped = async { _ = stopped.await };
    let served = tokio::spawn(strata_server::serve(listener, server.router.clone(), head_time, stopped));
    Listening { address, stop, served }
}

const LONG: Duration = Duration::from_secs(60);

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn chat(is_streamed: bool) -> String {
    let body = json!({ "stream": is_streamed, "messages": [{ "role": "user", "content": "Hi" }] });
    post("/v1/chat/completions", &body.to_string())
}

/// Reads until `end` came, or the connection ended.
async fn read_to(stream: &mut TcpStream, end: &str) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&text).contains(end) {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(n) => text.extend_from_slice(&buffer[..n]),
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

async fn until(what: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it did not come to be");
}

/// slotstream#21: a request with tools that delivered nothing for minutes.
#[tokio::test(start_paused = true)]
async fn field_report_46_a_first_byte_comes_at_once_and_then_every_five_seconds() {
    let server =
        Server::new(|_| Ok(then_silence(vec![Event::Reading { prompt_tokens: 9, reused_tokens: 0, progress: 0.25 }])));
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let body = json!({ "stream": true, "tools": tools, "messages": [{ "role": "user", "content": "Hi" }] });
    let request =
        axum::http::Request::post("/v1/chat/completions").body(axum::body::Body::from(body.to_string())).unwrap();
    let response = tower::ServiceExt::oneshot(server.router.clone(), request).await.unwrap();
    let mut frames = response.into_body().into_data_stream();
    let start = tokio::time::Instant::now();
    // The clock stands still but when everybody waits.
    let mut next = async || futures_util::StreamExt::next(&mut frames).await.unwrap().unwrap();
    assert!(next().await.starts_with(b": hello\n\n"));
    assert_eq!(start.elapsed(), Duration::ZERO);
    for beat in 1..=4 {
        assert_eq!(next().await, ": reading 25 %\n\n");
        assert!(start.elapsed() <= beat * Duration::from_millis(5_010), "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_client_that_goes_away_gives_its_request_up() {
    let server = Server::new(|_| Ok(then_silence(vec![token("x")])));
    let listening = listen(&server, LONG).await;
    let held = || server.host.held.load(Ordering::SeqCst);
    // While the prompt is read, while text comes, and where all of it is waited for.
    for (is_streamed, seen) in [(true, ": hello"), (true, "\"content\":\"x\""), (false, "")] {
        let mut stream = TcpStream::connect(listening.address).await.unwrap();
        stream.write_all(chat(is_streamed).as_bytes()).await.unwrap();
        read_to(&mut stream, seen).await;
        until(|| held() == 1).await;
        drop(stream);
        until(|| held() == 0).await;
    }
}

#[tokio::test]
async fn a_body_of_100_mb_is_refused_and_the_client_told() {
    let server = Server::saying(&["x"]);
    let listening = listen(&server, LONG).await;
    let stream = TcpStream::connect(listening.address).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    let head = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 104857600\r\n\r\n";
    let sent = tokio::spawn(async move {
        to.write_all(head.as_bytes()).await.unwrap();
        let piece = vec![b' '; 1 << 20];
        // It may be cut off.
        for _ in 0..100 {
            if to.write_all(&piece).await.is_err() {
                break;
            }
        }
        to
    });
    let mut text = String::new();
    from.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 413"), "{text}");
    assert!(text.contains("request_too_large"), "{text}");
    sent.await.unwrap();

    // Who asks first is told before anything is sent.
    let mut stream = TcpStream::connect(listening.address).await.unwrap();
    stream.write_all(head.replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n").as_bytes()).await.unwrap();
    assert!(read_to(&mut stream, "request_too_large").await.starts_with("HTTP/1.1 413"));
}

#[tokio::test]
async fn slow_requests_are_let_go() {
    let options = ServerOptions { arrival_time: Duration::from_millis(300), ..ServerOptions::default() };
    let server = Server::with(|request| Ok(says(request, &["x"])), PLAIN, options);
    let listening = listen(&server, Duration::from_millis(300)).await;
    // A head that does not end.
    let mut stream = TcpStream::connect(listening.address).await.unwrap();
    stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: loc").await.unwrap();
    let text = read_to(&mut stream, "never").await;
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 408"), "{text}");
    // A body that does not end, a byte at a time.
    let mut stream = TcpStream::connect(listening.address).await.unwrap();
    stream
        .write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n")
        .await
        .unwrap();
    let (mut from, mut to) = stream.into_split();
    let drip = tokio::spawn(async move {
        while to.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut text = String::new();
    let _ = from.read_to_string(&mut text).await;
    assert!(text.starts_with("HTTP/1.1 408") && text.contains("invalid_request_error"), "{text}");
    drip.abort();
    // Others are served meanwhile.
    let mut stream = TcpStream::connect(listening.address).await.unwrap();
    stream.write_all(chat(true).as_bytes()).await.unwrap();
    assert!(read_to(&mut stream, "[DONE]").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn requests_under_way_are_answered_before_the_end() {
    let (go, wait) = oneshot::channel::<()>();
    let wait = std::sync::Mutex::new(Some(wait));
    let server = Server::new(move |request| {
        let (wait, rest) = (wait.lock().unwrap().take().unwrap(), says(request, &["later"]));
        let waited = futures_util::StreamExt::flatten(futures_util::stream::once(async {
            _ = wait.await;
            rest
        }));
        Ok(Box::pin(waited))
    });
    let Listening { address, stop, served } = listen(&server, LONG).await;
    let idle = TcpStream::connect(address).await.unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(chat(true).as_bytes()).await.unwrap();
    read_to(&mut stream, "assistant").await;
    stop.send(()).unwrap();
    until(|| std::net::TcpStream::connect(address).is_err()).await;
    assert!(!served.is_finished());
    go.send(()).unwrap();
    assert!(read_to(&mut stream, "[DONE]").await.contains("later"));
    served.await.unwrap();
    drop(idle);
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_have_a_time_limit() {
    let options = ServerOptions { answer_time: Some(Duration::from_secs(20)), ..ServerOptions::default() };
    let server = Server::with(|_| Ok(then_silence(vec![token("x")])), PLAIN, options);
    let body = |is_streamed| json!({ "stream": is_streamed, "messages": [{ "role": "user", "content": "Hi" }] });
    let reply = server.post("/v1/chat/completions", &body(false)).await;
    assert_eq!(reply.status, 504);
    let last = server.post("/v1/chat/completions", &body(true)).await.data().pop().unwrap();
    assert!(last["error"]["message"].as_str().unwrap().contains("20 s"), "{last}");
    assert_eq!(server.host.held.load(Ordering::SeqCst), 0);
}
