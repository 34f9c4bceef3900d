//! Parses URLs of objects.

use std::fmt;

use object_store::path::Path as Key;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    S3,
    Google,
    Azure,
    Http,
}

impl Kind {
    /// Returns what the user can check when access is refused.
    pub(super) fn credentials(self) -> &'static str {
        match self {
            Self::S3 => {
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN in the environment and their \
                 permissions (AWS_SKIP_SIGNATURE=true for a public bucket)"
            }
            Self::Google => {
                "check GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT in the environment and the permissions of \
                 the account (GOOGLE_SKIP_SIGNATURE=true for a public bucket)"
            }
            Self::Azure => {
                "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN in the environment \
                 and their permissions (AZURE_SKIP_SIGNATURE=true for a public container)"
            }
            Self::Http => "http(s) is read without credentials; use a public or a signed URL",
        }
    }

    /// Returns the environment variable that allows an endpoint without TLS.
    pub(super) fn allow_http(self) -> &'static str {
        match self {
            Self::S3 => "AWS_ALLOW_HTTP",
            Self::Google => "GOOGLE_ALLOW_HTTP",
            Self::Azure | Self::Http => "AZURE_ALLOW_HTTP",
        }
    }

    /// Returns the word for a container of objects.
    pub(super) fn bucket(self) -> &'static str {
        match self {
            Self::S3 | Self::Google => "bucket",
            Self::Azure => "container",
            Self::Http => "server",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Address {
    pub(super) kind: Kind,
    /// The bucket; the container, or `container@account.host`; for HTTP, scheme, host, and the query after a `?`.
    pub(super) container: String,
    /// The object or prefix.
    pub(super) key: Key,
    /// Whether the URL can only be a prefix: it ends with `/` or is a whole bucket.
    pub(super) prefix: bool,
}

/// The reason why a URL is invalid.
#[derive(Debug, PartialEq)]
pub(super) struct BadAddress(String);

impl fmt::Display for BadAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Splits a URL at `://` into scheme and rest; `None` if it is not a URL.
pub(super) fn scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let word = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    (scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(word)).then_some((scheme, rest))
}

impl Address {
    pub(super) fn parse(text: &str) -> Result<Self, BadAddress> {
        let bad = |reason: &str| Err(BadAddress(reason.to_owned()));
        let Some((scheme, rest)) = scheme(text) else { return bad("not a URL") };
        let kind = match scheme.to_ascii_lowercase().as_str() {
            "s3" | "s3a" => Kind::S3,
            "gs" => Kind::Google,
            "az" | "abfs" | "abfss" => Kind::Azure,
            "http" | "https" => Kind::Http,
            other => return bad(&format!("cannot read {other}:// URLs; use s3, gs, az, http or https")),
        };
        // Keys of buckets are not encoded. HTTP paths are percent-encoded, and a query may sign the request.
        let (rest, query) = match kind {
            Kind::Http => {
                let rest = rest.split('#').next().unwrap_or_default();
                rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)))
            }
            _ => (rest, None),
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() {
            return bad(&format!("the URL has no {}; add it after {scheme}://", kind.bucket()));
        }
        let key = match kind {
            Kind::Http => Key::from_url_path(path),
            _ => Key::parse(path),
        };
        let key = key.map_err(|error| BadAddress(error.to_string()))?;
        let container = match (kind, query) {
            (Kind::Http, None) => format!("{scheme}://{host}"),
            (Kind::Http, Some(query)) => format!("{scheme}://{host}?{query}"),
            _ => host.to_owned(),
        };
        let prefix = path.is_empty() || path.ends_with('/');
        if prefix && kind == Kind::Http {
            return bad("an HTTP server cannot list files; give the URL of each file");
        }
        Ok(Self { kind, container, key, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Kind, String, String, bool) {
        let address = Address::parse(text).unwrap();
        (address.kind, address.container, address.key.to_string(), address.prefix)
    }

    #[test]
    fn urls_of_every_kind_are_parsed() {
        let parsed = |kind, container: &str, key: &str, prefix| (kind, container.to_owned(), key.to_owned(), prefix);
        for (text, expected) in [
            ("s3://b/dir/n.parquet", parsed(Kind::S3, "b", "dir/n.parquet", false)),
            ("S3a://b/dir/", parsed(Kind::S3, "b", "dir", true)),
            ("gs://b", parsed(Kind::Google, "b", "", true)),
            ("az://c/a b%20c", parsed(Kind::Azure, "c", "a b%20c", false)),
            ("abfss://c@a.dfs.core.windows.net/x", parsed(Kind::Azure, "c@a.dfs.core.windows.net", "x", false)),
            ("http://h:81/a%20b.parquet#top", parsed(Kind::Http, "http://h:81", "a b.parquet", false)),
            ("https://h/d/x?sig=a/b&c=%2F", parsed(Kind::Http, "https://h?sig=a/b&c=%2F", "d/x", false)),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn invalid_url_error_states_the_reason() {
        for (text, words) in [
            ("ftp://h/x", "cannot read ftp://"),
            ("file:///x", "cannot read file://"),
            ("s3:///x", "the URL has no bucket; add it after s3://"),
            ("az://", "the URL has no container"),
            ("https://h/dir/", "give the URL of each file"),
            ("https://h", "give the URL of each file"),
            ("s3://b/a//c", "empty path segment"),
            ("s3://b/../c", ".."),
        ] {
            let reason = Address::parse(text).unwrap_err().to_string();
            assert!(reason.contains(words), "{text}: {reason}");
        }
        for text in ["nodes.parquet", "/a/b", "C:/x", "://x", "a b://c", "3s://b/c", "dir/s3://"] {
            assert_eq!(scheme(text), None, "{text}");
        }
    }
}
