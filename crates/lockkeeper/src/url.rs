//! Where the servers are: `lockkeeper://a,b,c`, `unix:/path` and `embedded:`.

use std::fmt;
use std::path::PathBuf;

use crate::embedded;
use crate::error::Error;

/// The port of the native protocol where a URL doesn't say one.
pub(crate) const DEFAULT_PORT: u16 = 2379;

/// The most servers that one URL may name; a cluster has at most a handful.
const ENDPOINTS_MAX: usize = 64;

const FORMS: &str = "use lockkeeper://host:port[,host:port…], unix:/path/to/socket or embedded:";

/// What a URL names: at least one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Tried in turn.
    pub(crate) endpoints: Vec<Endpoint>,
    /// Nobody may be listening yet: a starter may start the node.
    pub(crate) is_embedded: bool,
}

/// One listener of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// A host name or address, and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Target {
    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// [`Error::Config`], which says what is wrong and which forms there are.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let wrong = |what: String| Error::Config(format!("URL {url:?}: {what}; {FORMS}"));
        if url == "embedded:" {
            let endpoints = vec![Endpoint::Unix(embedded::socket_path()?)];
            return Ok(Self { endpoints, is_embedded: true });
        }
        if let Some(path) = url.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(wrong("the path of the socket must be absolute".to_owned()));
            }
            let endpoints = vec![Endpoint::Unix(PathBuf::from(path))];
            return Ok(Self { endpoints, is_embedded: false });
        }
        let Some(list) = url.strip_prefix("lockkeeper://") else {
            return Err(wrong(match url.split_once("://") {
                Some(("zk" | "etcd" | "consul", _)) => {
                    "this version speaks only Lockkeeper's own protocol".to_owned()
                }
                Some((scheme, _)) => format!("the scheme {scheme:?} is unknown"),
                None if url.is_empty() => "it is empty".to_owned(),
                None => format!("it has no scheme (did you mean lockkeeper://{url} ?)"),
            }));
        };
        let list = list.strip_suffix('/').unwrap_or(list);
        let endpoints =
            list.split(',').map(parse_tcp).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        if endpoints.len() > ENDPOINTS_MAX {
            return Err(wrong(format!("it names more than {ENDPOINTS_MAX} servers")));
        }
        Ok(Self { endpoints, is_embedded: false })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Reads `host`, `host:port`, `[v6]` or `[v6]:port`.
fn parse_tcp(text: &str) -> Result<Endpoint, String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) =
                rest.split_once(']').ok_or_else(|| format!("{text:?} lacks a closing bracket"))?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(format!("{text:?} has something after its bracket")),
            }
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(format!("write the IPv6 address {text:?} in brackets"));
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(if text.is_empty() {
            "a host is missing".to_owned()
        } else {
            format!("{text:?} has no host")
        });
    }
    if let Some(odd) = host.chars().find(|c| c.is_whitespace() || "/@?#".contains(*c)) {
        return Err(format!("{odd:?} can't be in the host {host:?}"));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(digits) => match digits.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(format!("{digits:?} is no port (1 to 65535)")),
        },
    };
    Ok(Endpoint::Tcp(host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(url: &str) -> String {
        let target = Target::parse(url).unwrap();
        let names: Vec<_> = target.endpoints.iter().map(ToString::to_string).collect();
        names.join(" ")
    }

    fn wrong(url: &str) -> String {
        Target::parse(url).unwrap_err().to_string()
    }

    #[test]
    fn servers_are_named_with_or_without_a_port() {
        assert_eq!(endpoints("lockkeeper://a,b:1,c"), "a:2379 b:1 c:2379");
        assert_eq!(endpoints("lockkeeper://[::1]:2380,[fe80::1]/"), "[::1]:2380 [fe80::1]:2379");
        assert_eq!(endpoints("unix:/run/lk.sock"), "unix:/run/lk.sock");
        assert_eq!(endpoints("unix:///run/lk.sock"), "unix:/run/lk.sock");
    }

    #[test]
    fn a_wrong_url_says_what_is_wrong_and_which_forms_there_are() {
        for (url, what) in [
            ("", "it is empty"),
            ("localhost:2379", "did you mean lockkeeper://localhost:2379 ?"),
            ("http://a", "the scheme \"http\" is unknown"),
            ("zk://a", "speaks only Lockkeeper's own protocol"),
            ("unix:run/lk", "must be absolute"),
            ("lockkeeper://", "a host is missing"),
            ("lockkeeper://a,,b", "a host is missing"),
            ("lockkeeper://:1", "\":1\" has no host"),
            ("lockkeeper://a:0", "\"0\" is no port"),
            ("lockkeeper://a:70000", "\"70000\" is no port"),
            ("lockkeeper://::1", "in brackets"),
            ("lockkeeper://[::1", "closing bracket"),
            ("lockkeeper://a/path", "'/' can't be in the host"),
            ("lockkeeper://user@a", "'@' can't be in the host"),
        ] {
            let message = wrong(url);
            assert!(message.contains(what), "{url}: {message}");
            assert!(message.contains(FORMS), "{url}: {message}");
        }
    }
}
