//! Who a connection has proved to be, and the lists of who may do what.

use std::collections::HashSet;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use lockkeeper_core::{AclRef, IdRef};
use lockkeeper_wire::jute;
use sha1::{Digest, Sha1};

use crate::limits::{CREDENTIALS_BYTES_MAX, EXPANDED_BYTES_MAX};

/// One id: a scheme, and a name in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) scheme: String,
    pub(super) id: String,
}

impl Id {
    pub(super) fn new(scheme: &str, id: &str) -> Self {
        Self { scheme: scheme.to_owned(), id: id.to_owned() }
    }

    pub(super) fn as_ref(&self) -> IdRef<'_> {
        IdRef { scheme: &self.scheme, id: &self.id }
    }

    /// Whether it stands for somebody, so that the scheme `auth` means it, too.
    fn is_authenticated(&self) -> bool {
        matches!(self.scheme.as_str(), "digest" | "sasl" | "x509")
    }

    /// What `whoAmI` calls it: of a digest the name, and of nobody's business nothing.
    pub(super) fn user(&self) -> &str {
        match self.scheme.as_str() {
            "digest" => self.id.split(':').next().unwrap_or(""),
            "super" => "",
            _ => &self.id,
        }
    }
}

/// The ids that credentials prove. `None`: there is no such scheme, it takes no credentials, or
/// nobody's are so long.
pub(super) fn prove(
    scheme: &str,
    credentials: &[u8],
    address: IpAddr,
    super_digest: Option<&str>,
) -> Option<Vec<Id>> {
    if credentials.len() > CREDENTIALS_BYTES_MAX {
        return None;
    }
    match scheme {
        "digest" => {
            let digest = digest(credentials);
            let is_super = super_digest == Some(digest.as_str());
            let mut ids: Vec<Id> = is_super.then(|| Id::new("super", "")).into_iter().collect();
            ids.push(Id { scheme: "digest".to_owned(), id: digest });
            Some(ids)
        }
        // As the connection has it already.
        "ip" => Some(vec![Id::new("ip", &address.to_canonical().to_string())]),
        _ => None,
    }
}

/// `user:` and the hash of all of `user:password`.
fn digest(credentials: &[u8]) -> String {
    let text = String::from_utf8_lossy(credentials);
    let user = text.split(':').next().unwrap_or("");
    format!("{user}:{}", BASE64.encode(Sha1::digest(credentials)))
}

/// Turns lists of ACLs into what is stored, for one request.
pub(super) struct FixUp<'a> {
    own: &'a [Id],
    /// What the scheme `auth` may still add to what came in the request's frame.
    bytes_left: usize,
}

impl<'a> FixUp<'a> {
    /// For a connection with these ids.
    pub(super) fn new(own: &'a [Id]) -> Self {
        Self { own, bytes_left: EXPANDED_BYTES_MAX }
    }

    /// The list without repetitions, and with the connection's ids in the place of the scheme
    /// `auth`. `None` if it can't be.
    pub(super) fn fix(&mut self, acl: &'a jute::Acls<'a>) -> Option<Vec<AclRef<'a>>> {
        let mut fixed = Vec::new();
        let mut seen = HashSet::new();
        for jute::Acl { perms, id } in acl.iter() {
            let scheme = id.scheme?;
            if !seen.insert((perms, scheme, id.id)) {
                continue;
            }
            if scheme == "auth" {
                self.expand(perms, &mut fixed)?;
                continue;
            }
            let id = id.id?;
            if !is_valid(scheme, id) {
                return None;
            }
            fixed.push(AclRef { perms, id: IdRef { scheme, id } });
        }
        (!fixed.is_empty()).then_some(fixed)
    }

    fn expand(&mut self, perms: i32, fixed: &mut Vec<AclRef<'a>>) -> Option<()> {
        let before = fixed.len();
        for id in self.own.iter().filter(|id| id.is_authenticated()) {
            let bytes = size_of::<AclRef<'_>>() + id.scheme.len() + id.id.len();
            self.bytes_left = self.bytes_left.checked_sub(bytes)?;
            fixed.push(AclRef { perms, id: id.as_ref() });
        }
        (fixed.len() > before).then_some(())
    }
}

/// Whether a scheme knows such ids.
fn is_valid(scheme: &str, id: &str) -> bool {
    match scheme {
        "world" => id == "anyone",
        "digest" => {
            let mut parts = id.split(':');
            let (_, digest, more) = (parts.next(), parts.next(), parts.next());
            digest.is_some_and(|digest| !digest.is_empty()) && more.is_none()
        }
        "ip" => is_network(id),
        "x509" => id.contains('='),
        "sasl" => !id.is_empty(),
        _ => false,
    }
}

fn is_network(id: &str) -> bool {
    let (address, bits) = match id.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (id, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let bits_max = if address.is_ipv4() { 32 } else { 128 };
    bits.is_none_or(|bits| bits.parse::<u8>().is_ok_and(|bits| bits <= bits_max))
}

/// What others than its administrators see of an id in a list.
pub(super) fn masked(id: IdRef<'_>) -> Option<String> {
    let (user, _) = id.id.split_once(':').filter(|_| id.scheme == "digest")?;
    Some(format!("{user}:x"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_zookeepers() {
        assert_eq!(digest(b"user:pass"), "user:smGaoVKd/cQkjm7b88GyorAUz20=");
    }

    #[test]
    fn networks() {
        for id in ["10.0.0.1", "10.0.0.0/8", "::1", "fe80::/64", "0.0.0.0/0"] {
            assert!(is_network(id), "{id}");
        }
        for id in ["", "10.0.0", "10.0.0.0/33", "::1/129", "10.0.0.0/", "somewhere"] {
            assert!(!is_network(id), "{id}");
        }
    }
}
