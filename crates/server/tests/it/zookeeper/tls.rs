//! Clients within TLS, logins, and what a server wants to be shown first.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use lockkeeper_server::{ClientAuth, TlsSettings, Users};
use lockkeeper_wire::jute::{
    ConnectResponse, ErrorCode, Frames, Hidden, OpCode, Reply, Request, decode_reply,
    encode_request,
};
use md5::{Digest, Md5};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::client::{Heard, Zk, exists, fresh, set_data};
use super::{connect, start_with};
use crate::harness::{PATIENCE, Running, eventually};

/// An authority's certificate and those of a server and a client, as files.
struct Papers {
    directory: tempfile::TempDir,
}

impl Papers {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = CertifiedIssuer::self_signed(params, key).unwrap();
        std::fs::write(directory.path().join("ca.pem"), authority.pem()).unwrap();
        for (name, host) in [("server", "localhost"), ("client", "client")] {
            let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params.distinguished_name.push(DnType::OrganizationName, "Keys, Inc.");
            let key = KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &authority).unwrap();
            let both = key.serialize_pem() + &certificate.pem();
            std::fs::write(directory.path().join(format!("{name}.pem")), both).unwrap();
        }
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn settings(&self, client_auth: ClientAuth) -> TlsSettings {
        TlsSettings {
            certificate: self.path("server.pem"),
            key: self.path("server.pem"),
            authorities: Some(self.path("ca.pem")),
            client_auth,
            reload: true,
        }
    }

    fn server(&self, client_auth: ClientAuth) -> Running {
        start_with(|config| {
            config.zookeeper_tls_listen = Some("127.0.0.1:0".to_owned());
            config.zookeeper_tls = Some(self.settings(client_auth));
        })
    }
}

/// A client within TLS that trusts `authority`, and shows what is in `own`.
struct Secured {
    stream: StreamOwned<ClientConnection, TcpStream>,
    frames: Frames,
}

impl Secured {
    fn new(address: SocketAddr, authority: &Path, own: Option<&Path>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let chain = vec![CertificateDer::from_pem_file(own).unwrap()];
                let key = PrivateKeyDer::from_pem_file(own).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream: StreamOwned::new(connection, socket), frames: Frames::new(1 << 20) }
    }

    fn frame(&mut self) -> io::Result<Bytes> {
        loop {
            if let Some(frame) = self.frames.next_frame().unwrap() {
                return Ok(frame);
            }
            let mut bytes = [0; 4_096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.frames.input().put_slice(&bytes[..read]),
                // A read with a limit ends when the process is stopped and goes on.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The session's id.
    fn greet(&mut self) -> io::Result<i64> {
        let mut bytes = BytesMut::new();
        fresh().encode(&mut bytes).unwrap();
        self.stream.write_all(&bytes)?;
        let frame = self.frame()?;
        Ok(ConnectResponse::decode(&frame).unwrap().session_id)
    }

    fn who_am_i(&mut self) -> Vec<String> {
        let mut bytes = BytesMut::new();
        encode_request(1, &Request::WhoAmI, &mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
        let frame = self.frame().unwrap();
        let (header, body) = decode_reply(&frame).unwrap();
        let reply = Reply::decode(OpCode::WHO_AM_I, &header, body).unwrap();
        let Reply::ClientInfos(infos) = reply else { panic!("{reply:?}") };
        infos.iter().map(|it| format!("{}:{}", it.scheme.unwrap(), it.user.unwrap())).collect()
    }
}

#[test]
fn a_certificate_proves_its_subject() {
    let papers = Papers::new();
    let server = papers.server(ClientAuth::Need);
    let address = server.zookeeper_tls.unwrap();
    let mut zk = Secured::new(address, &papers.path("ca.pem"), Some(&papers.path("client.pem")));
    assert_ne!(zk.greet().unwrap(), 0);
    assert_eq!(zk.who_am_i(), ["ip:127.0.0.1", "x509:O=Keys\\, Inc.,CN=client"]);
    // The plain listener serves beside it.
    connect(&server).close();
}

#[test]
fn the_certificate_of_the_super_user_may_everything() {
    let papers = Papers::new();
    for (subject, expected) in [
        (
            "O=Keys\\, Inc.,CN=client",
            &["ip:127.0.0.1", "super:", "x509:O=Keys\\, Inc.,CN=client"][..],
        ),
        ("CN=client", &["ip:127.0.0.1", "x509:O=Keys\\, Inc.,CN=client"]),
    ] {
        let server = start_with(|config| {
            config.zookeeper_tls_listen = Some("127.0.0.1:0".to_owned());
            config.zookeeper_tls = Some(papers.settings(ClientAuth::Need));
            config.zookeeper.x509_super = Some(subject.to_owned());
        });
        let address = server.zookeeper_tls.unwrap();
        let own = papers.path("client.pem");
        let mut zk = Secured::new(address, &papers.path("ca.pem"), Some(&own));
        assert_ne!(zk.greet().unwrap(), 0);
        assert_eq!(zk.who_am_i(), expected);
    }
}

#[test]
fn without_the_certificate_that_is_needed_there_is_no_session() {
    let papers = Papers::new();
    let server = papers.server(ClientAuth::Need);
    let address = server.zookeeper_tls.unwrap();
    let strangers = Papers::new();
    for own in [None, Some(strangers.path("client.pem"))] {
        let mut zk = Secured::new(address, &papers.path("ca.pem"), own.as_deref());
        zk.greet().unwrap_err();
    }
    let server = papers.server(ClientAuth::Want);
    let address = server.zookeeper_tls.unwrap();
    let mut zk = Secured::new(address, &papers.path("ca.pem"), None);
    assert_ne!(zk.greet().unwrap(), 0);
    assert_eq!(zk.who_am_i(), ["ip:127.0.0.1"]);
}

#[test]
fn what_is_no_tls_is_dropped_and_words_are_answered_within() {
    let papers = Papers::new();
    let server = papers.server(ClientAuth::None);
    let address = server.zookeeper_tls.unwrap();
    let mut plain = Zk::at(address);
    let mut bytes = BytesMut::new();
    fresh().encode(&mut bytes).unwrap();
    plain.write(&bytes);
    let mut rest = Vec::new();
    let _ = plain.stream.read_to_end(&mut rest);
    assert!(rest.first() != Some(&0), "no session without TLS");
    let mut zk = Secured::new(address, &papers.path("ca.pem"), None);
    zk.stream.write_all(b"srvr").unwrap();
    let mut told = String::new();
    zk.stream.read_to_string(&mut told).unwrap();
    assert!(told.contains("\nMode: standalone\n"), "{told}");
}

#[test]
fn a_server_that_stops_says_goodbye_within_tls_too() {
    let papers = Papers::new();
    let server = papers.server(ClientAuth::None);
    let address = server.zookeeper_tls.unwrap();
    let mut zk = Secured::new(address, &papers.path("ca.pem"), None);
    assert_ne!(zk.greet().unwrap(), 0);
    server.stop();
    assert_eq!(zk.frame().unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn files_that_have_changed_are_read_again_for_those_who_come_then() {
    let papers = Papers::new();
    let server = papers.server(ClientAuth::Need);
    let address = server.zookeeper_tls.unwrap();
    let (authority, own) = (papers.path("ca.pem"), papers.path("client.pem"));
    let mut before = Secured::new(address, &authority, Some(&own));
    assert_ne!(before.greet().unwrap(), 0);
    // One that can't be used changes nothing, for longer than the server looks away.
    let key = std::fs::read(papers.path("server.pem")).unwrap();
    std::fs::write(papers.path("server.pem"), "nothing").unwrap();
    let broken = std::time::Instant::now();
    while broken.elapsed() < std::time::Duration::from_millis(1_200) {
        assert_ne!(Secured::new(address, &authority, Some(&own)).greet().unwrap(), 0);
    }
    std::fs::write(papers.path("server.pem"), key).unwrap();
    let others = Papers::new();
    for name in ["server.pem", "ca.pem"] {
        std::fs::copy(others.path(name), papers.path(name)).unwrap();
    }
    let (authority, own) = (others.path("ca.pem"), others.path("client.pem"));
    eventually("the new ones are used", || {
        Secured::new(address, &authority, Some(&own)).greet().is_ok_and(|session| session != 0)
    });
    assert_eq!(before.who_am_i().len(), 2, "who was there before still is");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let papers = Papers::new();
    let mut settings = papers.settings(ClientAuth::Need);
    settings.key = papers.path("ca.pem");
    let mut config = lockkeeper_server::ServerConfig::loopback(1, papers.path("data"));
    config.zookeeper_tls_listen = Some("127.0.0.1:0".to_owned());
    config.zookeeper_tls = Some(settings);
    let error = crate::harness::start_error(config).to_string();
    assert!(error.contains("ca.pem: no private key"), "{error}");
}

// -------------------------------------------------------------------------------------- logins

fn with_users(schemes: &[&str]) -> Running {
    let users = "Server { DigestLoginModule required user_fred=\"secret\"; };";
    let users = Arc::new(Users::from_jaas(users).unwrap());
    let schemes = schemes.iter().map(|it| (*it).to_owned()).collect();
    Running::start_with(|config| {
        config.zookeeper_listen = Some("127.0.0.1:0".to_owned());
        config.zookeeper.sasl_users = Some(users);
        config.zookeeper.required_schemes = schemes;
    })
}

/// What is answered at once, and so with a zxid of 0.
fn past_the_line(zk: &mut Zk, request: &Request<'_>) -> (ErrorCode, Vec<u8>) {
    let xid = zk.send(request);
    match zk.hear() {
        Heard::Reply { xid: of, zxid: 0, err, body } if of == xid => (err, body),
        other => panic!("{other:?} instead of an answer to {request:?}"),
    }
}

/// Logs in with a password: how it went, and what the server sent with it.
fn log_in(zk: &mut Zk, password: &str) -> (ErrorCode, Vec<u8>) {
    let (error, challenge) = past_the_line(zk, &Request::Sasl(Hidden(Some(b""))));
    assert_eq!(error, ErrorCode::OK);
    let challenge = String::from_utf8(challenge[4..].to_vec()).unwrap();
    let nonce = challenge.split("nonce=\"").nth(1).unwrap().split('"').next().unwrap();
    let sum = |bytes: &[u8]| -> String {
        Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let mut key = Md5::digest(format!("fred:zk-sasl-md5:{password}").as_bytes()).to_vec();
    key.extend(format!(":{nonce}:abc").bytes());
    let (key, asked) = (sum(&key), sum(b"AUTHENTICATE:zookeeper/zk-sasl-md5"));
    let proof = sum(format!("{key}:{nonce}:00000001:abc:auth:{asked}").as_bytes());
    let answer = format!(
        "username=\"fred\",realm=\"zk-sasl-md5\",nonce=\"{nonce}\",cnonce=\"abc\",nc=00000001,\
         qop=auth,digest-uri=\"zookeeper/zk-sasl-md5\",response={proof},charset=utf-8"
    );
    past_the_line(zk, &Request::Sasl(Hidden(Some(answer.as_bytes()))))
}

#[test]
fn a_login_proves_its_user() {
    let server = with_users(&["sasl"]);
    let mut zk = connect(&server);
    let (error, told) = log_in(&mut zk, "secret");
    assert_eq!(error, ErrorCode::OK);
    assert!(told[4..].starts_with(b"rspauth="), "{told:?}");
    zk.done(&exists("/", false));
    let told = zk.done(&Request::WhoAmI);
    assert!(told.windows(4).any(|four| four == b"fred"), "{told:?}");
    zk.close();
}

#[test]
fn the_login_of_the_super_user_may_everything() {
    for (name, expected) in [("fred", ErrorCode::OK), ("jo", ErrorCode::NO_AUTH)] {
        let users = "Server { DigestLoginModule required user_fred=\"secret\"; };";
        let users = Arc::new(Users::from_jaas(users).unwrap());
        let server = start_with(|config| {
            config.zookeeper.sasl_users = Some(users);
            config.zookeeper.sasl_super = Some(name.to_owned());
        });
        let mut zk = connect(&server);
        let write = set_data("/zookeeper/config", Some(b""), -1);
        assert_eq!(zk.fails(&write), ErrorCode::NO_AUTH);
        assert_eq!(log_in(&mut zk, "secret").0, ErrorCode::OK);
        assert_eq!(zk.call(&write).0, expected);
    }
}

#[test]
fn a_wrong_password_ends_the_connection() {
    for (schemes, expected) in [
        (&["sasl"][..], ErrorCode::SESSION_CLOSED_REQUIRE_SASL_AUTH),
        (&[], ErrorCode::AUTH_FAILED),
    ] {
        let server = with_users(schemes);
        let mut zk = connect(&server);
        assert_eq!(log_in(&mut zk, "guess").0, expected);
        zk.assert_closed();
    }
}

#[test]
fn who_shows_nothing_is_told_and_sent_away() {
    let server = with_users(&["sasl", "digest"]);
    for request in [exists("/", false), Request::Ping, Request::WhoAmI] {
        let mut zk = connect(&server);
        let (error, body) = past_the_line(&mut zk, &request);
        assert_eq!(error, ErrorCode::SESSION_CLOSED_REQUIRE_SASL_AUTH);
        assert!(body.is_empty());
        zk.assert_closed();
    }
    let mut zk = connect(&server);
    assert_eq!(zk.auth("digest", "fred:whatever"), ErrorCode::OK);
    zk.done(&exists("/", false));
    zk.close();
}

#[test]
fn without_users_there_are_no_logins() {
    let server = start_with(|_| {});
    let mut zk = connect(&server);
    let (error, _) = past_the_line(&mut zk, &Request::Sasl(Hidden(Some(b""))));
    assert_eq!(error, ErrorCode::AUTH_FAILED);
    zk.assert_closed();
    eventually("others are served", || Zk::silent(&server).greet(&fresh()).is_some());
}
