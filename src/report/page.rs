//! Parts that all pages share: the head with the style, and the escaping of text.

/// The style of pages and their pictures. Colors of splits are from Okabe and Ito's palette for color-blind readers; lines
/// differ in their dashes, too.
const STYLE: &str = include_str!("style.css");

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
