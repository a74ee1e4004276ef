//! The page, as it is embedded in this program. Nothing is read from a disk, so no path leads anywhere else.

use axum::extract::Request;
use axum::http::Method;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

use crate::http::unknown;

struct Asset {
    path: &'static str,
    kind: &'static str,
    body: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! assets {
    ($($path:literal $kind:ident $file:literal,)*) => {
        &[$(Asset {
            path: $path,
            kind: $kind,
            body: include_str!(concat!("../../web/", $file)),
        },)*]
    };
}

const ASSETS: &[Asset] = assets![
    "/" HTML "index.html",
    "/style.css" STYLE "style.css",
    "/icon.svg" PICTURE "icon.svg",
    "/js/app.js" SCRIPT "js/app.js",
    "/js/api.js" SCRIPT "js/api.js",
    "/js/store.js" SCRIPT "js/store.js",
    "/js/dom.js" SCRIPT "js/dom.js",
    "/js/format.js" SCRIPT "js/format.js",
    "/js/chart.js" SCRIPT "js/chart.js",
    "/js/timeline.js" SCRIPT "js/timeline.js",
    "/js/lanes.js" SCRIPT "js/lanes.js",
    "/js/turns.js" SCRIPT "js/turns.js",
    "/js/overview.js" SCRIPT "js/overview.js",
    "/js/tenant.js" SCRIPT "js/tenant.js",
    "/js/kernels.js" SCRIPT "js/kernels.js",
    "/js/lists.js" SCRIPT "js/lists.js",
    "/js/history.js" SCRIPT "js/history.js",
    "/js/actions.js" SCRIPT "js/actions.js",
];

/// Whether this path is one of the page's.
pub(super) fn has(path: &str) -> bool {
    ASSETS.iter().any(|asset| asset.path == path)
}

/// A part of the page, or that there is none.
pub(super) async fn serve(request: Request) -> Response {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let mut assets = ASSETS.iter();
    match assets.find(|asset| is_read && asset.path == request.uri().path()) {
        Some(asset) => {
            // Asked for anew each time: the files are small, and a newer daemon has others.
            let headers = [(CONTENT_TYPE, asset.kind), (CACHE_CONTROL, "no-cache")];
            (headers, asset.body).into_response()
        }
        None => unknown(request.uri().clone()).await.into_response(),
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_page_names_only_what_is_embedded_and_weighs_little() {
        let all: usize = ASSETS.iter().map(|asset| asset.body.len()).sum();
        assert!(all < 300_000, "{all} bytes uncompressed");
        for asset in ASSETS {
            assert!(
                !asset.body.contains("https://"),
                "{} names another host",
                asset.path
            );
            for part in asset.body.split("from \"./").skip(1) {
                let file = part.split('"').next().unwrap_or_default();
                assert!(has(&format!("/js/{file}")), "{}: {file}", asset.path);
            }
        }
        let page = ASSETS[0].body;
        assert!(
            !page.contains("<script>") && !page.contains(" style=") && !page.contains(" onclick")
        );
        for part in page
            .split(['"'])
            .filter(|p| p.starts_with('/') && p.len() > 1)
        {
            assert!(has(part), "{part}");
        }
    }
}
