//! Bodies of requests: within a limit of bytes and of time.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::problem::{Kind, Problem};

/// How long the rest of a body that is too large is read and thrown away: who is still sending does not look for an answer.
const DRAIN: Duration = Duration::from_secs(5);

/// All of a body.
pub(crate) async fn read(headers: &HeaderMap, body: Body, most_bytes: usize, time: Duration) -> Result<Bytes, Problem> {
    let too_large = || {
        let text = format!("the body has more than {most_bytes} bytes, the most that this server takes");
        Problem::new(Kind::TooLarge, text)
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let is_polite = headers.contains_key(header::EXPECT);
    let mut frames = body.into_data_stream();
    let drain = |mut frames: axum::body::BodyDataStream| {
        tokio::spawn(timeout(DRAIN, async move { while let Some(Ok(_)) = frames.next().await {} }));
    };
    if announced.is_some_and(|bytes| bytes > most_bytes as u64) {
        if !is_polite {
            drain(frames);
        }
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    let whole = timeout(time, async {
        while let Some(frame) = frames.next().await {
            let frame = frame.map_err(|error| Problem::invalid(format!("the body did not arrive: {error}")))?;
            if bytes.len() + frame.len() > most_bytes {
                return Err(too_large());
            }
            bytes.extend_from_slice(&frame);
        }
        Ok(())
    });
    match whole.await {
        Ok(Ok(())) => Ok(bytes.into()),
        Ok(Err(problem)) => {
            drain(frames);
            Err(problem)
        }
        Err(_) => {
            let text = format!("the body did not arrive within {} s", time.as_secs());
            Err(Problem::new(Kind::Slow, text))
        }
    }
}
