//! Connections.
//!
//! Owns: the loop that takes them, how long one may stay silent before a request, how many there may be, and how they end
//! when the server does. Promises: a client that sends its request's head byte by byte is let go in time; when the server
//! ends, requests under way are answered first.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The most connections at a time; others wait in the system's queue.
const MOST_CONNECTIONS: usize = 1024;
/// How long nothing is taken when the system gives no more connections.
const RECOVERY: Duration = Duration::from_millis(100);

/// Serves until `stop` is there, and then until all requests under way have been answered. A request's head must arrive
/// within `head_time`.
pub async fn serve(listener: TcpListener, router: Router, head_time: Duration, stop: impl Future<Output = ()>) {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    // Held by every connection: when the last one has ended, nobody is left to be told.
    let (stopping, is_stopping) = watch::channel(false);
    tokio::pin!(stop);
    loop {
        let accepted = async {
            let permit = Arc::clone(&room).acquire_owned().await.expect("it is never closed");
            (listener.accept().await, permit)
        };
        tokio::select! {
            () = &mut stop => break,
            (accepted, permit) = accepted => match accepted {
                Ok((stream, _)) => {
                    drop(tokio::spawn(connection(stream, router.clone(), head_time, is_stopping.clone(), permit)));
                }
                // Too many open files, for example: those that are there go on.
                Err(_) => tokio::time::sleep(RECOVERY).await,
            },
        }
    }
    drop((listener, is_stopping));
    let _ = stopping.send(true);
    stopping.closed().await;
}

async fn connection(
    stream: TcpStream,
    router: Router,
    head_time: Duration,
    mut is_stopping: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
) {
    // Tokens are small and must not wait for each other.
    let _ = stream.set_nodelay(true);
    let service = TowerToHyperService::new(router);
    let mut http = http1::Builder::new();
    let served =
        http.timer(TokioTimer::new()).header_read_timeout(head_time).serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    tokio::select! {
        _ = &mut served => return,
        _ = is_stopping.changed() => {}
    }
    served.as_mut().graceful_shutdown();
    // Whatever goes wrong with a connection is its client's affair.
    let _ = served.await;
}
