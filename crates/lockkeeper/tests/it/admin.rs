//! Questions and an operator's requests, and what becomes of them when answers get lost.

use lockkeeper::{Error, SessionId, end_session};
use lockkeeper_wire::native::{self, refused, request, response};

use crate::peer::{Peer, soon};

#[tokio::test]
async fn a_question_whose_answer_was_lost_is_asked_again() {
    let peer = Peer::listen().await;
    let (client, first) = tokio::join!(Peer::builder(&[&peer]).connect(), peer.accept());
    let (client, mut link) = (client.unwrap(), first);
    let answers = async {
        let request = link.next().await;
        assert!(matches!(request.body, Some(request::Body::GetLock(_))));
        drop(link);
        let mut link = peer.accept().await;
        let request = link.next().await;
        let lock = native::Lock { name: "a".into(), hold_count: 1, ..Default::default() };
        link.send(request.id, response::Body::Lock(lock)).await;
        // The same connection serves the next question.
        let request = link.next().await;
        let code = refused::Code::NotFound.into();
        let no = native::Refused { code, ..Default::default() };
        link.send(request.id, response::Body::Refused(no)).await;
    };
    let calls = async {
        let lock = client.admin().get_lock("a", 0).await.unwrap().unwrap();
        assert_eq!((lock.name.as_str(), lock.hold_count), ("a", 1));
        assert_eq!(client.admin().get_lock("b", 0).await.unwrap(), None);
    };
    soon("both", async { tokio::join!(answers, calls) }).await;
}

#[tokio::test]
async fn a_change_whose_answer_was_lost_has_an_unknown_outcome() {
    let peer = Peer::listen().await;
    let client = Peer::client(&[&peer], Peer::builder(&[&peer])).await;
    let answers = async {
        let mut link = peer.accept().await;
        assert!(matches!(link.next().await.body, Some(request::Body::RemoveMember(_))));
    };
    let calls = async {
        let error = client.admin().remove_member(2).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
        assert!(error.outcome_is_unknown() && !error.is_retryable());
    };
    soon("both", async { tokio::join!(answers, calls) }).await;
}

#[tokio::test]
async fn a_watch_streams_until_its_connection_ends() {
    let peer = Peer::listen().await;
    let client = Peer::client(&[&peer], Peer::builder(&[&peer])).await;
    let answers = async {
        let mut link = peer.accept().await;
        let request = link.next().await;
        link.send_done(request.id).await;
        for token in [1, 2] {
            let event = native::WatchEvent { event: "granted".into(), token, ..Default::default() };
            link.send(request.id, response::Body::WatchEvent(event)).await;
        }
    };
    let calls = async {
        let mut watch = client.admin().watch("jobs/").await.unwrap();
        for token in [1, 2] {
            let event = watch.next().await.unwrap();
            assert_eq!((event.event.as_str(), event.token), ("granted", Some(token)));
        }
        assert!(matches!(watch.next().await, Err(Error::Unreachable { .. })));
    };
    soon("both", async { tokio::join!(answers, calls) }).await;
}

#[tokio::test]
async fn a_backup_is_put_together() {
    let peer = Peer::listen().await;
    let client = Peer::client(&[&peer], Peer::builder(&[&peer])).await;
    let answers = async {
        let mut link = peer.accept().await;
        let request = link.next().await;
        for (data, last) in [("ab", false), ("c", true)] {
            let chunk = native::BackupChunk { data: data.into(), last };
            link.send(request.id, response::Body::BackupChunk(chunk)).await;
        }
        link
    };
    let calls = async { assert_eq!(client.admin().backup().await.unwrap(), b"abc") };
    soon("both", async { tokio::join!(answers, calls) }).await;
}

#[tokio::test]
async fn a_session_is_ended_by_its_secret_once_or_twice() {
    let peer = Peer::listen().await;
    let url = format!("lockkeeper://{}", peer.address);
    for is_known in [true, false] {
        let answers = async {
            let mut link = peer.accept().await;
            let request = link.next().await;
            let Some(request::Body::EndSession(end)) = request.body else { panic!() };
            assert_eq!((end.session, end.secret), (7, vec![9; 16]));
            if is_known {
                link.send_done(request.id).await;
            } else {
                let code = refused::Code::UnknownSession.into();
                let no = native::Refused { code, ..Default::default() };
                link.send(request.id, response::Body::Refused(no)).await;
            }
        };
        let call = end_session(&url, SessionId(7), [9; 16]);
        soon("both", async { tokio::join!(answers, call) }).await.1.unwrap();
    }
}
