//! Logins by DIGEST-MD5 (RFC 2831), with the users of a JAAS file.
//!
//! ```text
//!   client   (nothing)
//!   server   realm="zk-sasl-md5",nonce="…",charset=utf-8,algorithm=md5-sess,qop="auth"
//!   client   username="…",realm="…",nonce="…",cnonce="…",nc=00000001,qop=auth,
//!            digest-uri="zookeeper/zk-sasl-md5",response=…
//!   server   rspauth=…
//! ```
//!
//! The password doesn't cross the wire, but MD5 is old: whoever listens can guess passwords at
//! leisure. It is here for clients that know nothing else; use it within TLS.
//!
//! Not here: layers of integrity and confidentiality, and logins that build on an earlier one.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use md5::{Digest, Md5};

/// The name of this server in a login, as ZooKeeper's clients expect it.
const REALM: &str = "zk-sasl-md5";

/// The service in a login, likewise.
const SERVICE: &str = "zookeeper/";

/// Bytes of one step, as the standard limits them.
const TOKEN_BYTES_MAX: usize = 4_096;

/// Users with their passwords, which its `Debug` doesn't tell.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Users(BTreeMap<String, String>);

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Users {
    /// From the section `Server` of a JAAS file: what is called `user_NAME`.
    ///
    /// # Errors
    ///
    /// What is wrong with the file, for its owner.
    pub fn from_jaas(text: &str) -> Result<Self, String> {
        let tokens = jaas_tokens(text)?;
        let mut tokens = tokens.iter();
        let mut users = BTreeMap::new();
        let mut has_section = false;
        while let Some(section) = tokens.next() {
            if tokens.next() != Some(&Jaas::Mark('{')) {
                return Err("a section is a name and { }, such as `Server { … };`".to_owned());
            }
            let is_ours = *section == Jaas::Text("Server".to_owned());
            has_section |= is_ours;
            while let Some(token) = tokens.next().filter(|token| **token != Jaas::Mark('}')) {
                let Jaas::Text(key) = token else { continue };
                let Some(user) = key.strip_prefix("user_").filter(|_| is_ours) else { continue };
                let (equals, password) = (tokens.next(), tokens.next());
                match (equals, password) {
                    (Some(Jaas::Mark('=')), Some(Jaas::Text(password))) => {
                        users.insert(user.to_owned(), password.clone());
                    }
                    _ => return Err(format!("write user_{user}=\"password\"")),
                }
            }
            // The semicolon behind a section.
            let _ = tokens.next();
        }
        match (has_section, users.is_empty()) {
            (false, _) => Err("there is no section `Server { … };`".to_owned()),
            (true, true) => Err("its section `Server` has no user_NAME=\"password\"".to_owned()),
            (true, false) => Ok(Self(users)),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Jaas {
    Text(String),
    Mark(char),
}

fn jaas_tokens(text: &str) -> Result<Vec<Jaas>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("//") {
            rest = comment.find('\n').map_or("", |end| &comment[end..]);
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, behind)| behind);
        } else if let Some(quoted) = rest.strip_prefix('"') {
            let (inside, behind) = quoted.split_once('"').ok_or("a quotation has no end")?;
            tokens.push(Jaas::Text(inside.to_owned()));
            rest = behind;
        } else if matches!(first, '{' | '}' | ';' | '=') {
            tokens.push(Jaas::Mark(first));
            rest = &rest[first.len_utf8()..];
        } else {
            let end = rest.find(|c: char| c.is_whitespace() || "{};=\"".contains(c));
            let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
            tokens.push(Jaas::Text(word.to_owned()));
            rest = behind;
        }
        rest = rest.trim_start();
    }
    Ok(tokens)
}

/// One login of one connection.
pub(super) struct DigestMd5 {
    users: Arc<Users>,
    nonce: String,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Challenged,
    Over,
}

/// What is to be done after a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The client is sent this, and answers it.
    Challenge(Vec<u8>),
    /// The client is sent this, and is `user` from now on.
    Done { token: Vec<u8>, user: String },
    /// It isn't who it says, or doesn't speak this.
    Failed,
}

impl DigestMd5 {
    /// `nonce` is drawn for this login.
    pub(super) fn new(users: Arc<Users>, nonce: [u8; 16]) -> Self {
        Self { users, nonce: hex(&nonce), state: State::New }
    }

    /// Takes what the client sent.
    pub(super) fn step(&mut self, token: &[u8]) -> Step {
        match std::mem::replace(&mut self.state, State::Over) {
            State::New if token.is_empty() => {
                self.state = State::Challenged;
                let nonce = &self.nonce;
                let challenge = format!(
                    "realm=\"{REALM}\",nonce=\"{nonce}\",charset=utf-8,algorithm=md5-sess,\
                     qop=\"auth\""
                );
                Step::Challenge(challenge.into_bytes())
            }
            State::Challenged => self.verify(token).unwrap_or(Step::Failed),
            State::New | State::Over => Step::Failed,
        }
    }

    /// `None`: something is missing, twice there, or wrong.
    fn verify(&self, token: &[u8]) -> Option<Step> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let said = directives(std::str::from_utf8(token).ok()?)?;
        let get = |key: &str| said.get(key).map(String::as_str);
        let (user, nonce, cnonce, nc) =
            (get("username")?, get("nonce")?, get("cnonce")?, get("nc")?);
        let (uri, response) = (get("digest-uri")?, get("response")?);
        let (realm, qop) = (get("realm").unwrap_or(""), get("qop").unwrap_or("auth"));
        let is_ours = nonce == self.nonce
            && nc == "00000001"
            && qop == "auth"
            && (realm == REALM || realm.is_empty())
            && uri.to_ascii_lowercase().starts_with(SERVICE);
        // Somebody unknown takes as long as a wrong password.
        let password = self.users.0.get(user);
        let proofs = ENCODINGS.into_iter().filter_map(|encode| {
            let secret =
                [encode(user)?, encode(realm)?, encode(password.map_or("", String::as_str))?]
                    .join(&b':');
            let mut key = md5(&secret).to_vec();
            key.extend(format!(":{nonce}:{cnonce}").bytes());
            if let Some(authorized) = get("authzid") {
                key.extend(format!(":{authorized}").bytes());
            }
            let key = hex(&md5(&key));
            let proof = |method: &str| {
                let asked = hex(&md5(format!("{method}:{uri}").as_bytes()));
                hex(&md5(format!("{key}:{nonce}:{nc}:{cnonce}:{qop}:{asked}").as_bytes()))
            };
            Some((proof("AUTHENTICATE"), proof("")))
        });
        let proved =
            proofs.fold(
                None,
                |proved, (expected, answer)| {
                    if same(&expected, response) { Some(answer) } else { proved }
                },
            );
        let answer = proved.filter(|_| is_ours && password.is_some())?;
        // Whom it would like to act for doesn't matter: it is who it has proved to be.
        Some(Step::Done { token: format!("rspauth={answer}").into_bytes(), user: user.to_owned() })
    }
}

type Encoding = fn(&str) -> Option<Vec<u8>>;

/// The standard wants Latin-1 where it suffices; not all clients know.
const ENCODINGS: [Encoding; 2] = [
    |text| Some(text.as_bytes().to_vec()),
    |text| text.chars().map(|c| u8::try_from(c).ok()).collect(),
];

fn md5(bytes: &[u8]) -> [u8; 16] {
    Md5::digest(bytes).into()
}

/// In lower case.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// In a time that doesn't tell where they differ.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// `key=value` and `key="value"`, with commas between them.
fn directives(text: &str) -> Option<BTreeMap<&str, String>> {
    let mut found = BTreeMap::new();
    let mut rest = text.trim_start_matches([',', ' ']);
    while !rest.is_empty() {
        let (key, behind) = rest.split_once('=')?;
        let (value, behind) = match behind.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = behind.find(',').unwrap_or(behind.len());
                let (value, behind) = behind.split_at(end);
                (value.trim_end().to_owned(), behind)
            }
        };
        if found.insert(key.trim(), value).is_some() {
            return None;
        }
        rest = behind.trim_start_matches([',', ' ']);
    }
    Some(found)
}

/// The text until the closing quotation mark, and what is behind it.
fn unquoted(quoted: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    loop {
        match characters.next()? {
            (at, '"') => return Some((value, &quoted[at + 1..])),
            (_, '\\') => value.push(characters.next()?.1),
            (_, c) => value.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/* users */ Server {\n  org.apache.zookeeper.server.auth.DigestLoginModule \
                        required // all\n  user_super=\"su;per\"\n  user_fred=\"sécret\";\n};\n\
                        Client { x required user_other=\"not mine\"; };\n";

    fn users() -> Users {
        Users::from_jaas(FILE).unwrap()
    }

    #[test]
    fn users_come_from_the_servers_section() {
        let Users(users) = users();
        let users: Vec<_> = users.iter().map(|(name, it)| (name.as_str(), it.as_str())).collect();
        assert_eq!(users, [("fred", "sécret"), ("super", "su;per")]);
        assert!(!format!("{:?}", Users::from_jaas(FILE)).contains("cret"));
        for (wrong, what) in [
            ("", "no section"),
            ("Client { a b user_x=\"y\"; };", "no section"),
            ("Server { a required; };", "no user_NAME"),
            ("Server a", "a section is"),
            ("Server { user_x }", "write user_x="),
            ("Server { user_x=\"y", "no end"),
        ] {
            let error = Users::from_jaas(wrong).unwrap_err();
            assert!(error.contains(what), "{wrong}: {error}");
        }
    }

    /// What a client answers.
    fn answer(user: &str, password: &str, nonce: &str, more: &str) -> String {
        let (cnonce, nc, uri) = ("OA6MHXh6VqTrRk", "00000001", "zookeeper/zk-sasl-md5");
        let mut key = md5(format!("{user}:{REALM}:{password}").as_bytes()).to_vec();
        key.extend(format!(":{nonce}:{cnonce}").bytes());
        let key = hex(&md5(&key));
        let asked = hex(&md5(format!("AUTHENTICATE:{uri}").as_bytes()));
        let response = hex(&md5(format!("{key}:{nonce}:{nc}:{cnonce}:auth:{asked}").as_bytes()));
        format!(
            "charset=utf-8,username=\"{user}\",realm=\"{REALM}\",nonce=\"{nonce}\",nc={nc},\
             cnonce=\"{cnonce}\",digest-uri=\"{uri}\",response={response},qop=auth{more}"
        )
    }

    fn challenged() -> (DigestMd5, String) {
        let mut login = DigestMd5::new(Arc::new(users()), [7; 16]);
        let Step::Challenge(challenge) = login.step(b"") else { panic!("no challenge") };
        let challenge = String::from_utf8(challenge).unwrap();
        let challenge = directives(&challenge).unwrap();
        assert_eq!(challenge["realm"], REALM);
        assert_eq!(challenge["algorithm"], "md5-sess");
        (login, challenge["nonce"].clone())
    }

    #[test]
    fn who_knows_the_password_is_in() {
        for (user, password) in [("fred", "sécret"), ("super", "su;per")] {
            let (mut login, nonce) = challenged();
            let step = login.step(answer(user, password, &nonce, "").as_bytes());
            let Step::Done { token, user: who } = step else { panic!("{user}: {step:?}") };
            assert_eq!(who, user);
            assert!(token.starts_with(b"rspauth=") && token.len() == 40);
            assert_eq!(login.step(b""), Step::Failed, "one login, one end");
        }
    }

    /// The example of RFC 2831, section 4, whose names aren't ours: only the sums are the same.
    #[test]
    fn the_sums_are_the_standards() {
        let mut key = md5(b"chris:elwood.innosoft.com:secret").to_vec();
        key.extend(b":OA6MG9tEQGm2hh:OA6MHXh6VqTrRk");
        let key = hex(&md5(&key));
        let asked = hex(&md5(b"AUTHENTICATE:imap/elwood.innosoft.com"));
        let proof = format!("{key}:OA6MG9tEQGm2hh:00000001:OA6MHXh6VqTrRk:auth:{asked}");
        assert_eq!(hex(&md5(proof.as_bytes())), "d388dad90d4bbd760a152321f2143af7");
    }

    #[test]
    fn who_does_not_is_out() {
        let (_, nonce) = challenged();
        let right = answer("fred", "sécret", &nonce, "");
        for wrong in [
            answer("fred", "guess", &nonce, ""),
            answer("nobody", "", &nonce, ""),
            answer("fred", "sécret", &"0".repeat(32), ""),
            answer("fred", "sécret", &nonce, ",username=\"super\""),
            right.replace("nc=00000001", "nc=00000002"),
            right.replace("qop=auth", "qop=auth-int"),
            right.replace("zookeeper/zk", "imap/zk"),
            right.replace("response=", "answer="),
            "username=\"".to_owned(),
            String::new(),
            "x".repeat(5_000),
        ] {
            let (mut login, _) = challenged();
            assert_eq!(login.step(wrong.as_bytes()), Step::Failed, "{wrong}");
            assert_eq!(login.step(right.as_bytes()), Step::Failed, "one try");
        }
        let mut login = DigestMd5::new(Arc::new(users()), [7; 16]);
        assert_eq!(login.step(right.as_bytes()), Step::Failed, "before it is asked");
    }

    #[test]
    fn quotations() {
        let said = directives(r#"a="x\"y,z", b=c ,d="""#).unwrap();
        assert_eq!(
            (said["a"].as_str(), said["b"].as_str(), said["d"].as_str()),
            ("x\"y,z", "c", "")
        );
        assert_eq!(directives("a"), None);
        assert_eq!(directives(r#"a="x\"#), None);
    }
}
