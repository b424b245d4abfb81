//! The web page: files that are part of the program. No path of a request is one of the file system.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;

/// Nothing but this server's own files may be loaded, run or asked.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Path, type and bytes of each file.
pub(crate) const FILES: [(&str, &str, &[u8]); 1] =
    [("/", "text/html; charset=utf-8", include_bytes!("../assets/index.html"))];

/// The response that is one of them.
pub(crate) fn file(ty: &'static str, bytes: &'static [u8]) -> Response {
    let mut response = Response::new(Body::from(bytes));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(ty));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
