//! The part of the testcontainers API that zookeeper-client's tests use, run on a local server
//! command (env ZK_SERVER_CMD, contract in ../../lib.sh) in the place of Docker images.
use std::collections::HashMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Write};
use std::marker::PhantomData;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub mod clients {
    #[derive(Default)]
    pub struct Cli;
}
pub mod images {
    pub mod generic {
        pub use crate::GenericImage;
    }
}
pub mod core {
    pub use crate::{Container, Healthcheck, LogStream, RunnableImage, WaitFor};
}

#[derive(Default)]
pub struct Healthcheck;
impl Healthcheck {
    pub fn with_cmd<T>(self, _: impl Iterator<Item = T>) -> Self {
        self
    }
    pub fn with_interval(self, _: Duration) -> Self {
        self
    }
    pub fn with_retries(self, _: u32) -> Self {
        self
    }
}
pub enum WaitFor {
    Healthcheck,
}

#[derive(Default)]
pub struct GenericImage {
    tag: String,
    env: HashMap<String, String>,
}
impl GenericImage {
    pub fn new(_: &str, tag: &str) -> Self {
        Self { tag: tag.into(), ..Default::default() }
    }
    pub fn with_env_var(mut self, k: impl Into<String>, v: impl Into<String>) -> Self {
        self.env.insert(k.into(), v.into());
        self
    }
    pub fn with_healthcheck(self, _: Healthcheck) -> Self {
        self
    }
    pub fn with_wait_for(self, _: WaitFor) -> Self {
        self
    }
}
pub struct RunnableImage<I> {
    image: GenericImage,
    volumes: Vec<(String, String)>,
    p: PhantomData<I>,
}
impl From<GenericImage> for RunnableImage<GenericImage> {
    fn from(image: GenericImage) -> Self {
        Self { image, volumes: vec![], p: PhantomData }
    }
}
impl<I> RunnableImage<I> {
    pub fn with_volume<A: Into<String>, B: Into<String>>(mut self, v: (A, B)) -> Self {
        self.volumes.push((v.0.into(), v.1.into()));
        self
    }
    pub fn with_network(self, _: impl Into<String>) -> Self {
        self
    }
}

pub struct Container<'d, I> {
    port: u16,
    tls: bool,
    dir: PathBuf,
    env: Vec<(String, String)>,
    child: Mutex<Option<Child>>,
    p: PhantomData<(&'d (), I)>,
}
static N: AtomicU32 = AtomicU32::new(0);

impl clients::Cli {
    pub fn run<I>(&self, image: RunnableImage<I>) -> Container<'_, I> {
        let tag = &image.image.tag;
        if tag == "3.3" || tag == "3.4" {
            if std::env::var("ZK_SERVER_CMD_OLD").is_err() {
                panic!("SKIP: needs a ZooKeeper {tag} server");
            }
        }
        let n = N.fetch_add(1, Ordering::SeqCst);
        let dir = std::env::temp_dir().join(format!("zkc-{}-{}", std::process::id(), n));
        fs::create_dir_all(&dir).unwrap();
        let mut map: Vec<(String, String)> =
            image.volumes.iter().map(|(s, d)| (d.clone(), s.clone())).collect();
        map.sort_by_key(|m| std::cmp::Reverse(m.0.len()));
        let local = |s: &str| map.iter().fold(s.to_string(), |a, (d, s)| a.replace(d.as_str(), s));
        let find = |k: &str| map.iter().find(|(d, _)| d == k).map(|m| m.1.clone());
        let cfg = find("/conf/zoo.cfg").map(|p| fs::read_to_string(p).unwrap()).unwrap_or_default();
        let tls = cfg.contains("ssl.keyStore.location");
        let id = find("/data")
            .map(|d| fs::read_to_string(PathBuf::from(d).join("myid")).unwrap().trim().to_string())
            .unwrap_or_default();
        let (mut peers, mut rest, mut port) = (String::new(), String::new(), 0u16);
        for l in cfg.lines().filter(|l| !l.trim().is_empty()) {
            let k = l.split('=').next().unwrap();
            if l.starts_with("server.") {
                if k == format!("server.{id}") {
                    port = l.rsplit([';', ':']).next().unwrap().parse().unwrap();
                }
                peers += l;
                peers.push('\n');
            } else if ![
                "clientPort",
                "secureClientPort",
                "initLimit",
                "syncLimit",
                "dataDir",
                "ssl.keyStore.location",
                "ssl.trustStore.location",
                "ssl.clientAuth",
                "serverCnxnFactory",
            ]
            .contains(&k)
            {
                rest += &local(l);
                rest.push('\n');
            }
        }
        if port == 0 {
            // Below those that Linux takes for outgoing connections, one of which could have it by then.
            let chance = || (RandomState::new().build_hasher().finish() % 17_000) as u16 + 15_000;
            let bound = (0..1_000).find_map(|_| TcpListener::bind(("127.0.0.1", chance())).ok());
            port = bound.unwrap().local_addr().unwrap().port();
        }
        let set = |k: &str, v: String| (k.to_string(), v);
        let jvm = image.image.env.get("SERVER_JVMFLAGS").cloned().unwrap_or_default();
        let jaas = find("/conf/jaas.conf").unwrap_or_default();
        let jvm: String = jvm
            .split(' ')
            .filter(|f| !f.contains("java.security.auth.login.config"))
            .map(|f| format!("{} ", local(f)))
            .collect();
        let env = vec![
            set("SRV_PORT", if tls { String::new() } else { port.to_string() }),
            set(
                "SRV_TLS_PORT",
                if tls && peers.is_empty() { port.to_string() } else { String::new() },
            ),
            set(
                "SRV_TLS_PEM",
                if tls { find("/certs/server.pem").unwrap() } else { String::new() },
            ),
            set(
                "SRV_TLS_CA",
                if tls { find("/certs/ca.cert.pem").unwrap() } else { String::new() },
            ),
            set("SRV_DIR", dir.to_string_lossy().into_owned()),
            set("SRV_ID", id),
            set("SRV_PEERS", peers),
            set("SRV_CFG", rest),
            set("SRV_JVM", jvm),
            set("SRV_JAAS", jaas),
        ];
        let c = Container { port, tls, dir, env, child: Mutex::new(None), p: PhantomData };
        c.start();
        c
    }
}

impl<I> Container<'_, I> {
    pub fn start(&self) {
        let cmd = std::env::var("ZK_SERVER_CMD").expect("ZK_SERVER_CMD: a server to start");
        let log = File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        let child = Command::new("sh")
            .arg("-c")
            .arg(format!("exec {cmd}"))
            .envs(self.env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        *self.child.lock().unwrap() = Some(child);
        let end = Instant::now() + Duration::from_secs(60);
        while !self.ready() {
            if let Some(s) = self.child.lock().unwrap().as_mut().unwrap().try_wait().unwrap() {
                panic!("server ended: {s}\n{}", self.log());
            }
            if Instant::now() > end {
                panic!("server not ready\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    fn ready(&self) -> bool {
        let Ok(mut s) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        if self.tls {
            return true;
        }
        s.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut out = String::new();
        s.write_all(b"srvr").is_ok() && s.read_to_string(&mut out).is_ok() && out.contains("Mode:")
    }
    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
    pub fn stop(&self) {
        if let Some(mut c) = self.child.lock().unwrap_or_else(|e| e.into_inner()).take() {
            let _ = Command::new("kill").arg(c.id().to_string()).status();
            for _ in 0..200 {
                if c.try_wait().unwrap().is_some() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            let _ = c.kill();
            let _ = c.wait();
        }
    }
    pub fn get_host_port(&self, _: u16) -> u16 {
        self.port
    }
    pub fn stdout(&self) -> LogStream {
        LogStream { path: self.dir.join("log"), from: self.log().len() }
    }
}
impl<I> Drop for Container<'_, I> {
    fn drop(&mut self) {
        self.stop();
        if std::env::var("ZKC_KEEP").is_err() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

pub struct LogStream {
    path: PathBuf,
    from: usize,
}
impl LogStream {
    pub fn wait_for_message(&self, m: &str) -> Result<(), String> {
        for _ in 0..600 {
            let l = fs::read_to_string(&self.path).unwrap_or_default();
            if l.get(self.from..).unwrap_or("").contains(m) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(format!("no '{m}' in the log"))
    }
}
