//! The web page: a chat and a monitor, a few small files that are a part of the program.
//!
//! Promises: nothing comes from anywhere else, and nothing that a model writes can run: the page's policy allows its own
//! scripts alone. Refuses: to serve any other file; the names here are all there are.

use axum::Router;
use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::problem::{Kind, Problem};

/// What a browser may do for the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const INDEX: &str = "index.html";

/// Name, type and content of each file.
const FILES: [(&str, &str, &str); 7] = [
    (INDEX, "text/html; charset=utf-8", include_str!("../assets/index.html")),
    ("style.css", "text/css; charset=utf-8", include_str!("../assets/style.css")),
    ("icon.svg", "image/svg+xml", include_str!("../assets/icon.svg")),
    ("api.js", "text/javascript; charset=utf-8", include_str!("../assets/api.js")),
    ("chat.js", "text/javascript; charset=utf-8", include_str!("../assets/chat.js")),
    ("markdown.js", "text/javascript; charset=utf-8", include_str!("../assets/markdown.js")),
    ("monitor.js", "text/javascript; charset=utf-8", include_str!("../assets/monitor.js")),
];

/// The page at `/`, and its files.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/", get(|| async { file(INDEX) }))
        .route("/assets/{name}", get(|Path(name): Path<String>| async move { file(&name) }))
}

fn file(name: &str) -> Response {
    let Some((_, content_type, content)) = FILES.iter().find(|(known, ..)| *known == name) else {
        return Problem::new(Kind::NotFound, "the web page has no such file").into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, *content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another version of the program has other files under the same names.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, *content).into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    #[test]
    fn the_page_names_only_files_that_there_are_and_nothing_of_others() {
        let mut named = 0;
        for (name, _, content) in FILES {
            for place in content.split(['"', '\'']).filter(|text| text.starts_with("assets/") || text.starts_with("./"))
            {
                let wanted = place.rsplit('/').next().expect("a name");
                assert!(FILES.iter().any(|(known, ..)| *known == wanted), "{name} names {place}");
                named += 1;
            }
            // Names of formats are no addresses.
            let addresses = content.matches("http").count() - content.matches("http://www.w3.org/2000/svg").count();
            assert!(addresses == 0 || name == "markdown.js", "{name} has an address");
            assert!(!content.contains("innerHTML") && !content.contains("eval("), "{name} could run a text");
        }
        assert!(named >= 7, "{named}");
        let inline = ["style=", "onclick", "javascript:"];
        assert!(!inline.iter().any(|word| FILES[0].2.contains(word)), "the policy would not allow it");
    }

    #[test]
    fn files_have_the_policy_and_others_are_not_found() {
        let index = file(INDEX);
        assert_eq!(index.status(), StatusCode::OK);
        assert!(index.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
        for name in ["", "..", "../Cargo.toml", "%2e%2e", "page.rs", "INDEX.HTML"] {
            assert_eq!(file(name).status(), StatusCode::NOT_FOUND, "{name}");
        }
    }
}
