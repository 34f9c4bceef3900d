//! Parts that all pages share: the head with the style, and the escaping of text.

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:720px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em 1em .2em 0;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}.bar{display:inline-block;height:.8em;background:#4a78b5}svg{max-width:100%;height:auto}\
pre{background:#f6f6f6;padding:1em;overflow-x:auto}";

/// Begins a page, up to its heading.
pub(super) fn begin(title: &str, heading: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title><style>{STYLE}</style></head>\n\
         <body>\n<h1>{}</h1>\n",
        escape(title),
        escape(heading),
    )
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
