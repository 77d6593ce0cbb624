//! The client against a real single node, on loopback and on a real disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{
    Client, ClientBuilder, Error, Guard, Lease, LossReason, RefusedCode, State, end_session,
};
use lockkeeper_node::{Environment, Member, Start, Timers};
use lockkeeper_server::{Server, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::peer::{GENEROUS, acquire, granted, soon};

/// Of leases that are to run out, or nearly so: longer than a machine stands still whose disk or
/// processors stall.
const SHORT_TTL: Duration = Duration::from_secs(5);

/// A node in a directory of its own.
struct Node {
    server: Server,
    directory: TempDir,
}

impl Node {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = Self::serve(&directory, "127.0.0.1:0").await;
        Self { server, directory }
    }

    async fn serve(directory: &TempDir, listen: &str) -> Server {
        let mut config = ServerConfig::loopback(1, directory.path().join("data"));
        config.listen = Some(listen.to_owned());
        config.node.free_space_bytes_min = 0;
        soon("a node", Server::start(config, Environment::system())).await.unwrap()
    }

    /// Ends the node and starts it again on the same directory and port.
    async fn restart(self) -> Self {
        let (address, directory) = (self.address(), self.directory);
        soon("the end of the node", self.server.stop()).await;
        drop(self.server);
        let server = Self::serve(&directory, &address).await;
        Self { server, directory }
    }

    fn address(&self) -> String {
        self.server.tcp_address().unwrap().to_string()
    }

    fn url(&self) -> String {
        format!("lockkeeper://{}", self.address())
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder().url(self.url())
    }

    async fn client(&self) -> Client {
        soon("a client", self.builder().connect()).await.unwrap()
    }
}

/// Three nodes.
struct Cluster {
    servers: [Option<Server>; 3],
    addresses: [String; 3],
    _directory: TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Members are named by address before any of them runs, and a port alone may be given to
        // another test until then.
        let pid = std::process::id();
        let host = format!("127.{}.{}.1", 1 + (pid >> 8) % 250, pid % 256);
        let ports = [(); 3].map(|()| std::net::TcpListener::bind((host.as_str(), 0)).unwrap());
        let peers = ports.map(|port| port.local_addr().unwrap().to_string());
        let members: Vec<_> =
            (1..).zip(&peers).map(|(id, peer)| Member { id, peer_address: peer.clone() }).collect();
        let start = |member: Member| {
            let data = directory.path().join(member.id.to_string());
            let mut config = ServerConfig::loopback(member.id, data);
            config.listen = Some("127.0.0.1:0".to_owned());
            config.node.listen_peer = Some(member.peer_address);
            config.node.start = Start::Together(members.clone());
            config.node.timers = Timers::RELAXED;
            config.node.free_space_bytes_min = 0;
            Server::start(config, Environment::system())
        };
        let [one, two, three] = [0, 1, 2].map(|index| start(members[index].clone()));
        let (one, two, three) =
            soon("a cluster", async { tokio::try_join!(one, two, three) }).await.unwrap();
        let servers = [one, two, three];
        let addresses = servers.each_ref().map(|it| it.tcp_address().unwrap().to_string());
        Self { servers: servers.map(Some), addresses, _directory: directory }
    }

    /// Clients that try the server `first` first.
    fn builder(&self, first: usize) -> ClientBuilder {
        let mut addresses = self.addresses.clone();
        addresses.rotate_left(first);
        Client::builder().url(format!("lockkeeper://{}", addresses.join(",")))
    }
}

/// A network between a client and a node that can be cut, or can swallow everything.
struct Wire {
    address: String,
    state: watch::Sender<Traffic>,
    connections: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Default)]
struct Traffic {
    /// Connections stay open, and nothing comes through.
    is_swallowed: bool,
    /// How often all connections were closed; new ones are taken at once.
    cuts: u32,
}

impl Wire {
    async fn to(node: &Node) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (state, seen) = watch::channel(Traffic::default());
        let target = node.address();
        let connections = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let far = TcpStream::connect(&target).await.unwrap();
                let (near_reader, near_writer) = near.into_split();
                let (far_reader, far_writer) = far.into_split();
                tokio::spawn(pass(near_reader, far_writer, seen.clone()));
                tokio::spawn(pass(far_reader, near_writer, seen.clone()));
            }
        });
        Self { address, state, connections }
    }

    fn swallow(&self) {
        self.state.send_modify(|traffic| traffic.is_swallowed = true);
    }

    fn cut(&self) {
        self.state.send_modify(|traffic| traffic.cuts += 1);
    }

    async fn client(&self, ttl: Duration) -> Client {
        let url = format!("lockkeeper://{}", self.address);
        soon("a client", Client::builder().url(url).ttl(ttl).connect()).await.unwrap()
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut traffic: watch::Receiver<Traffic>,
) {
    let (cuts, now) = (traffic.borrow().cuts, traffic.clone());
    let flow = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
            let is_swallowed = now.borrow().is_swallowed;
            if !is_swallowed && to.write_all(&buffer[..bytes]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = flow => {}
        _cut = traffic.wait_for(|traffic| traffic.cuts != cuts) => {}
    }
}

/// An acquire that has its place in line.
async fn in_line(client: &Client, name: &str) -> JoinHandle<Result<Guard, Error>> {
    let (told, mut places) = mpsc::unbounded_channel();
    let request = client.lock(name).on_wait(move |queue| {
        // The test may have seen enough.
        let _ = told.send(queue.place);
    });
    let waiting = tokio::spawn(request.acquire());
    soon("a place in line", places.recv()).await.unwrap();
    waiting
}

#[tokio::test]
async fn a_lock_passes_on_in_order_with_growing_tokens() {
    let node = Node::start().await;
    let (one, two, three) = (node.client().await, node.client().await, node.client().await);
    let first = granted(acquire(&one, "jobs/nightly")).await;
    let second = in_line(&two, "jobs/nightly").await;
    let third = in_line(&three, "jobs/nightly").await;
    let released = first.release().await.unwrap();
    let second = granted(second).await;
    assert!(second.token() > released.token);
    assert!(!third.is_finished());
    second.confirm().await.unwrap();
    let token = second.token();
    drop(second);
    let third = granted(third).await;
    assert!(third.token() > token);
    assert_eq!(third.run(|lease| async move { lease.state() }).await.unwrap(), State::Held);
}

#[tokio::test]
async fn sharers_and_permits_hold_together_and_no_more_than_there_are() {
    let node = Node::start().await;
    let client = node.client().await;
    let readers = [
        client.lock("book").shared().acquire().await.unwrap(),
        client.lock("book").shared().acquire().await.unwrap(),
    ];
    let writer = in_line(&client, "book").await;
    let late = client.lock("book").shared().try_acquire().await;
    assert!(matches!(late, Err(Error::Busy { .. })), "nobody overtakes: {late:?}");
    drop(readers);
    drop(granted(writer).await);

    let two = client.lock("desks").permits(2, 3).acquire().await.unwrap();
    let _one = client.lock("desks").permits(1, 3).acquire().await.unwrap();
    assert!(matches!(
        client.lock("desks").permits(1, 3).try_acquire().await,
        Err(Error::Busy { .. })
    ));
    let other = client.lock("desks").permits(1, 4).acquire().await.unwrap_err();
    assert!(
        matches!(&other, Error::Refused(no) if no.code == RefusedCode::ModeConflict),
        "{other}"
    );
    two.release().await.unwrap();
    let _again = client.lock("desks").permits(2, 3).try_acquire().await.unwrap();
}

#[tokio::test]
async fn a_dropped_acquire_leaves_no_waiter() {
    let node = Node::start().await;
    let (holder, client) = (node.client().await, node.client().await);
    let guard = granted(acquire(&holder, "a")).await;
    let mut watch = client.admin().watch("a").await.unwrap();
    for _ in 0..20 {
        in_line(&client, "a").await.abort();
    }
    // In flight: dropped before its answer.
    for _ in 0..20 {
        let under_way = acquire(&client, "a");
        tokio::task::yield_now().await;
        under_way.abort();
    }
    let last = in_line(&client, "a").await;
    let lock = client.admin().get_lock("a", 0).await.unwrap().unwrap();
    assert_eq!((lock.hold_count, lock.waiter_count), (1, 1), "{lock:?}");
    last.abort();
    let cancelled = async {
        let mut places = 0_i32;
        let mut has_queued = false;
        while !has_queued || places > 0 {
            match watch.next().await.unwrap().event.as_str() {
                "queued" => (places, has_queued) = (places + 1, true),
                "cancelled" => places -= 1,
                _ => {}
            }
        }
    };
    soon("every place given up", cancelled).await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_holder_behind_a_network_that_swallows_everything_knows_before_the_next_one_holds() {
    let node = Node::start().await;
    let wire = Wire::to(&node).await;
    let cut_off = wire.client(SHORT_TTL).await;
    let guard = granted(acquire(&cut_off, "a")).await;
    let other = node.client().await;
    let waiting = in_line(&other, "a").await;
    wire.swallow();
    let next = granted(waiting).await;
    // It isn't asked for the first time now: the clock alone decides.
    assert!(matches!(guard.state(), State::Lost(LossReason::Expired { .. })), "{guard:?}");
    assert!(next.token() > guard.token());
}

#[tokio::test]
async fn a_broken_connection_costs_nothing_that_is_held_or_waited_for() {
    let node = Node::start().await;
    let wire = Wire::to(&node).await;
    let client = wire.client(Duration::from_secs(30)).await;
    let held = granted(acquire(&client, "held")).await;
    let elsewhere = node.client().await;
    let other = granted(acquire(&elsewhere, "wanted")).await;
    let waiting = in_line(&client, "wanted").await;
    for _ in 0..3 {
        wire.cut();
        soon("confirmed", held.confirm()).await.unwrap();
    }
    // The grant, or its event, may fall into the gap.
    wire.cut();
    other.release().await.unwrap();
    let wanted = granted(waiting).await;
    assert_eq!((held.state(), wanted.state()), (State::Held, State::Held));
    held.release().await.unwrap();
    wanted.release().await.unwrap();
}

#[tokio::test]
async fn exclusion_and_every_request_survive_a_network_that_breaks_all_the_time() {
    const TASKS: usize = 16;
    const TURNS: usize = 25;
    let node = Node::start().await;
    let wire = Wire::to(&node).await;
    let client = wire.client(Duration::from_secs(30)).await;
    let inside = Arc::new(AtomicU64::new(0));
    let newest = Arc::new(AtomicU64::new(0));
    let (done, mut progress) = watch::channel(0);
    let done = Arc::new(done);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (client, inside, newest) = (client.clone(), inside.clone(), newest.clone());
            let done = Arc::clone(&done);
            tokio::spawn(async move {
                for turn in 0..TURNS {
                    let guard = client.lock("one").acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    assert!(newest.fetch_max(guard.token(), Ordering::SeqCst) < guard.token());
                    // Some are dropped in line, some while held.
                    client.lock("one").try_acquire().await.unwrap_err();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if (task + turn) % 2 == 0 {
                        guard.release().await.unwrap();
                    } else {
                        drop(guard);
                    }
                    acquire(&client, "other").abort();
                    done.send_modify(|count| *count += 1);
                }
            })
        })
        .collect();
    for round in 1..=(TASKS * TURNS / 10) {
        soon("progress", progress.wait_for(|count| *count >= round * 10)).await.unwrap();
        wire.cut();
    }
    for task in tasks {
        soon("its turns", task).await.unwrap();
    }
    assert!(wire.connections.load(Ordering::SeqCst) > 20, "it was broken often");
    // Whatever was dropped is settled before the session's next answer.
    for name in ["one", "other"] {
        drop(soon("a free lock", client.lock(name).acquire()).await.unwrap());
    }
    client.close().await;
    let status = node.client().await.admin().cluster_status().await.unwrap();
    assert_eq!((status.hold_count, status.waiter_count, status.session_count), (0, 0, 0));
}

#[tokio::test]
async fn a_short_lease_is_kept() {
    let node = Node::start().await;
    let client = node.builder().ttl(SHORT_TTL).connect().await.unwrap();
    let guard = granted(acquire(&client, "a")).await;
    let mut deadlines = guard.watch_deadline();
    let first = *deadlines.borrow_and_update();
    let much_later = first + SHORT_TTL + Duration::from_secs(1);
    soon("renewals", deadlines.wait_for(|deadline| *deadline >= much_later)).await.unwrap();
    guard.confirm().await.unwrap();
}

#[tokio::test]
async fn locks_outlive_a_restart_of_the_node() {
    let node = Node::start().await;
    let client = node.client().await;
    let held = granted(acquire(&client, "held")).await;
    let elsewhere = node.client().await;
    let waiting = in_line(&elsewhere, "held").await;
    let node = node.restart().await;
    soon("confirmed", held.confirm()).await.unwrap();
    let token = held.token();
    soon("the release", held.release()).await.unwrap();
    assert!(granted(waiting).await.token() > token);
    drop(node);
}

#[tokio::test]
async fn what_is_held_and_waited_for_outlives_the_server_that_it_was_asked_of() {
    let mut cluster = Cluster::start().await;
    let one = soon("a client", cluster.builder(0).connect()).await.unwrap();
    let two = soon("a client", cluster.builder(1).connect()).await.unwrap();
    let held = granted(acquire(&one, "a")).await;
    let waiting = in_line(&two, "a").await;
    soon("the end of a node", cluster.servers[0].take().unwrap().stop()).await;
    soon("confirmed", held.confirm()).await.unwrap();
    assert!(held.state().is_held() && !waiting.is_finished());
    let token = held.token();
    soon("the release", held.release()).await.unwrap();
    let next = granted(waiting).await;
    assert!(next.token() > token);
    next.confirm().await.unwrap();
}

#[tokio::test]
async fn timing_out_tells_place_and_holder() {
    let node = Node::start().await;
    let (holder, client) = (node.client().await, node.client().await);
    let _guard = holder.lock("a").purpose("release 8.2").acquire().await.unwrap();
    let _first = in_line(&holder, "a").await;
    let mut limit = Duration::from_millis(100);
    // What it had to wait for on a slow machine is its session, and not the lock: then once more.
    let error = loop {
        let error = client.lock("a").wait_at_most(limit).acquire().await.unwrap_err();
        if !matches!(error, Error::TimedOut { place: None, .. }) || limit > GENEROUS {
            break error;
        }
        limit *= 2;
    };
    let Error::TimedOut { place: Some(2), holder: Some(hold), .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!((hold.purpose.as_str(), hold.owner.pid), ("release 8.2", std::process::id()));
    assert!(error.to_string().contains("place 2 in line"), "{error}");
    let lock = client.admin().get_lock("a", 0).await.unwrap().unwrap();
    assert_eq!(lock.waiter_count, 1);
}

#[tokio::test]
async fn an_operator_asks_for_a_lock_back_or_takes_it() {
    let node = Node::start().await;
    let (holder, client) = (node.client().await, node.client().await);
    let guard = granted(acquire(&holder, "a")).await;
    let waiting = in_line(&client, "a").await;
    let stale = client.admin().revoke("a", guard.token() + 1, false).await.unwrap_err();
    assert!(
        matches!(&stale, Error::Refused(no) if no.code == RefusedCode::StaleToken),
        "{stale:?}"
    );

    client.admin().revoke("a", guard.token(), false).await.unwrap();
    soon("the request", guard.revoked()).await;
    assert!(guard.state().is_held() && !waiting.is_finished());
    guard.release().await.unwrap();
    let guard = granted(waiting).await;

    let waiting = in_line(&holder, "a").await;
    client.admin().revoke("a", guard.token(), true).await.unwrap();
    drop(granted(waiting).await);
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Forced);
    // The session goes on.
    drop(granted(acquire(&client, "a")).await);
}

#[tokio::test]
async fn a_revoked_holder_that_does_not_listen_loses_the_lock_before_it_passes_on() {
    let node = Node::start().await;
    let holder = node.builder().ttl(SHORT_TTL).connect().await.unwrap();
    let client = node.client().await;
    let guard = granted(acquire(&holder, "a")).await;
    let waiting = in_line(&client, "a").await;
    client.admin().revoke("a", guard.token(), false).await.unwrap();
    drop(granted(waiting).await);
    assert_eq!(guard.state(), State::Lost(LossReason::Revoked));
}

#[tokio::test]
async fn a_session_ended_by_its_secret_passes_everything_on() {
    let node = Node::start().await;
    let (holder, client) = (node.client().await, node.client().await);
    let guard = granted(acquire(&holder, "a")).await;
    let waiting = in_line(&client, "a").await;
    let session = guard.session();
    assert!(session.is_same_boot);
    let wrong = end_session(&session.url, session.id, [0; 16]).await.unwrap_err();
    assert!(
        matches!(&wrong, Error::Refused(no) if no.code == RefusedCode::WrongSecret),
        "{wrong:?}"
    );
    end_session(&session.url, session.id, session.secret).await.unwrap();
    drop(granted(waiting).await);
    soon("the loss", guard.lost()).await;
    end_session(&session.url, session.id, session.secret).await.unwrap();
    assert_eq!(client.admin().get_session(session.id).await.unwrap(), None);
}

#[tokio::test]
async fn closing_gives_everything_back() {
    let node = Node::start().await;
    let (holder, client) = (node.client().await, node.client().await);
    let guard = granted(acquire(&holder, "a")).await;
    let waiting = in_line(&holder, "a").await;
    soon("closed", holder.close()).await;
    assert!(matches!(soon("its end", waiting).await.unwrap(), Err(Error::Closed)));
    assert_eq!(guard.state(), State::Lost(LossReason::Released));
    client.lock("a").try_acquire().await.unwrap().release().await.unwrap();
    assert_eq!(client.admin().get_lock("a", 0).await.unwrap(), None);
}

#[tokio::test]
async fn entering_again_keeps_the_lock_until_the_last_handle_is_released() {
    let node = Node::start().await;
    let (holder, client) = (node.client().await, node.client().await);
    let outer = granted(acquire(&holder, "a")).await;
    let inner = outer.reenter().await.unwrap();
    assert_eq!(inner.token(), outer.token());
    assert_eq!(outer.release().await.unwrap().remaining, 1);
    assert!(matches!(client.lock("a").try_acquire().await, Err(Error::Busy { .. })));
    assert_eq!(inner.release().await.unwrap().remaining, 0);
    drop(client.lock("a").try_acquire().await.unwrap());
}

#[tokio::test]
async fn names_that_are_none_are_refused_with_the_reason() {
    let node = Node::start().await;
    let client = node.client().await;
    for name in ["", "a//b", "a/", "tab\tbed", &"x".repeat(1_025)] {
        let error = client.lock(name).acquire().await.unwrap_err();
        let is_refused = matches!(&error, Error::Refused(no)
            if matches!(no.code, RefusedCode::InvalidName | RefusedCode::LimitReached));
        assert!(is_refused, "{name:?}: {error:?}");
    }
    let error = client.lock("x".repeat(1 << 20)).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    drop(client.lock("good").acquire().await.unwrap());
}

#[tokio::test]
async fn a_unix_socket_serves_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let idle = Duration::from_secs(60);
    let config = ServerConfig::embedded(directory.path().join("data"), socket.clone(), idle);
    let _server = Server::start(config, Environment::system()).await.unwrap();
    let client = Client::connect(format!("unix:{}", socket.display())).await.unwrap();
    let guard = granted(acquire(&client, "a")).await;
    assert!(guard.session().is_same_boot);
    guard.release().await.unwrap();
}

#[test]
fn guards_and_clients_go_anywhere() {
    fn goes_anywhere<T: Send + Sync + 'static>() {}
    goes_anywhere::<Guard>();
    goes_anywhere::<Lease>();
    goes_anywhere::<Client>();
    goes_anywhere::<Error>();
}

#[tokio::test]
async fn many_tasks_share_one_connection() {
    let node = Node::start().await;
    let client = node.client().await;
    let tasks: Vec<_> = (0..64)
        .map(|i| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..8 {
                    let guard = client.lock(format!("lock-{i}")).acquire().await.unwrap();
                    guard.release().await.unwrap();
                    drop(client.lock("shared by all").acquire().await.unwrap());
                }
            })
        })
        .collect();
    for task in tasks {
        soon("its turns", task).await.unwrap();
    }
    client.close().await;
    let status = node.client().await.admin().cluster_status().await.unwrap();
    assert_eq!((status.hold_count, status.waiter_count), (0, 0), "{status:?}");
}
