//! One server's part of a script: what is asked of it, and what came back, masked.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::steps::{Acl, CLIENTS, Op, Path, Step, What};
use crate::client::{Client, Greeting, Silence};
use crate::jute::{In, Out};

const OP_ERROR: i32 = -1;
const OP_MULTI: i32 = 14;
const OP_MULTI_READ: i32 = 22;
const OP_CLOSE: i32 = -11;
const UNIMPLEMENTED: i32 = -6;
const XID_NOTIFICATION: i32 = -1;

/// What came back: for each step its lines, and the zxids in them.
#[derive(Default)]
pub struct Trace {
    steps: Vec<(String, Vec<i64>)>,
}

impl Trace {
    pub fn of_step(&self, index: usize) -> &str {
        self.steps.get(index).map_or("", |step| &step.0)
    }

    pub fn zxids(&self, index: usize) -> &[i64] {
        self.steps.get(index).map_or(&[], |step| &step.1)
    }

    /// The first step at which the other one is different.
    pub fn parts_from(&self, other: &Self) -> Option<usize> {
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        for (index, (left, right)) in self.steps.iter().zip(&other.steps).enumerate() {
            if left.0 != right.0 || left.1.len() != right.1.len() {
                return Some(index);
            }
            for (a, b) in left.1.iter().zip(&right.1) {
                let orders = |all: &[i64], new: i64| -> Vec<_> {
                    all.iter().map(|old| old.cmp(&new)).collect()
                };
                if orders(&mine, *a) != orders(&theirs, *b) {
                    return Some(index);
                }
                mine.push(*a);
                theirs.push(*b);
            }
        }
        None
    }
}

struct Player<'a> {
    port: u16,
    root: &'a str,
    clients: Vec<Option<Client>>,
    /// Whose a session is; a client that begins anew gets a new letter.
    owners: HashMap<i64, String>,
    /// How each of them can be ended, so that none is left to end in a later script.
    passwords: HashMap<i64, Vec<u8>>,
    sessions: usize,
    /// The zxid that was seen after each step.
    seen: Vec<i64>,
    line: String,
    zxids: Vec<i64>,
}

pub fn play(port: u16, root: &str, script: &[Step]) -> Trace {
    let mut player = Player {
        port,
        root,
        clients: (0..CLIENTS).map(|_| None).collect(),
        owners: HashMap::new(),
        passwords: HashMap::new(),
        sessions: 0,
        seen: Vec::new(),
        line: String::new(),
        zxids: Vec::new(),
    };
    let mut trace = Trace::default();
    for client in 0..CLIENTS {
        player.begin(client);
    }
    player.make_root();
    player.line.clear();
    player.zxids.clear();
    for step in script {
        player.step(step);
        let latest = player.clients.iter().flatten().map(|c| c.last_zxid).max();
        player.seen.push(latest.unwrap_or(0));
        let mut line = std::mem::take(&mut player.line);
        line.truncate(line.trim_end().len());
        trace.steps.push((line, std::mem::take(&mut player.zxids)));
    }
    player.clear();
    trace
}

impl Player<'_> {
    fn say(&mut self, text: impl AsRef<str>) {
        self.line.push_str(text.as_ref());
        self.line.push(' ');
    }

    fn begin(&mut self, client: usize) {
        // Opening sessions isn't what is compared.
        let mut tries =
            (0..3).filter_map(|_| Client::connect(self.port, &Greeting::default()).ok());
        match tries.next() {
            Some(connected) => self.adopt(client, connected),
            None => {
                self.clients[client] = None;
                self.say("no session");
            }
        }
    }

    fn adopt(&mut self, client: usize, connected: Client) {
        let sessions = &mut self.sessions;
        self.owners.entry(connected.session.id).or_insert_with(|| {
            *sessions += 1;
            format!("S{sessions}")
        });
        self.passwords.insert(connected.session.id, connected.session.password.clone());
        self.clients[client] = Some(connected);
    }

    fn make_root(&mut self) {
        let mut out = Out::default();
        out.string(self.root).buffer(Some(b""));
        write_acl(&mut out, Acl::Open);
        out.i32(0);
        if let Some(client) = &mut self.clients[0] {
            let _ = client.ask(1, &out.0);
        }
    }

    /// Ends the sessions and takes the script's tree away, as the super user.
    fn clear(&mut self) {
        for client in self.clients.iter_mut().filter_map(Option::take) {
            self.passwords.remove(&client.session.id);
            end(client);
        }
        for (id, password) in self.passwords.drain() {
            let greeting = Greeting { id, password: Some(password), ..Greeting::default() };
            // Most of them have ended: then this is refused.
            if let Ok(client) = Client::connect(self.port, &greeting)
                && client.session.id == id
            {
                end(client);
            }
        }
        let Ok(mut client) = Client::connect(self.port, &Greeting::default()) else { return };
        let mut out = Out::default();
        out.i32(-4).i32(100).i32(0).string("digest").string("super:test");
        client.send(&out.0);
        if client.frame().is_ok() {
            remove(&mut client, self.root);
            self.remove_numbered(&mut client);
        }
        end(client);
    }

    /// What was made at the top with a number behind its name.
    fn remove_numbered(&self, client: &mut Client) {
        let mut out = Out::default();
        out.string("/").bool(false);
        let Ok((0, body)) = client.ask(8, &out.0) else { return };
        for name in In(&body).strings().flatten().unwrap_or_default() {
            let Some((name_of, number)) = name.split_at_checked(name.len().saturating_sub(10))
            else {
                continue;
            };
            let is_number = number.len() == 10 && number.bytes().all(|b| b.is_ascii_digit());
            if is_number && (name_of.is_empty() || self.root.strip_prefix('/') == Some(name_of)) {
                remove(client, &format!("/{name}"));
            }
        }
    }

    fn step(&mut self, step: &Step) {
        let client = step.client;
        match &step.what {
            What::One(op) => {
                let mut out = Out::default();
                write_op(&mut out, op, self.root, self.marked(op));
                self.exchange(client, op_number(op), out, |player, input| player.read(op, input));
            }
            What::Multi(ops) => {
                let out = self.multi(ops);
                self.exchange(client, OP_MULTI, out, Self::read_multi);
            }
            What::MultiRead(ops) => {
                let out = self.multi(ops);
                self.exchange(client, OP_MULTI_READ, out, Self::read_multi);
            }
            What::CloseSession => {
                self.exchange(client, OP_CLOSE, Out::default(), |_, _| Some(()));
                if let Some(mut closed) = self.clients[client].take() {
                    self.say(format!("then {:?}", closed.frame().err()));
                }
                self.begin(client);
                self.others(client, true);
                return;
            }
            What::Reconnect { password, ahead, read_only, timeout_ms } => {
                self.reconnect(client, *password, *ahead, *read_only, *timeout_ms);
            }
            What::Raw { op, body } => {
                self.exchange(client, *op, Out(body.clone()), |player, input| {
                    let length = input.0.len();
                    input.0 = &[];
                    player.say(format!("{length} bytes"));
                    Some(())
                });
            }
        }
        self.others(client, false);
    }

    fn marked(&self, op: &Op) -> i64 {
        match op {
            Op::SetWatches { since, .. } => {
                let index = self.seen.len().saturating_sub(1 + since);
                self.seen.get(index).copied().unwrap_or(0)
            }
            _ => 0,
        }
    }

    fn multi(&self, ops: &[Op]) -> Out {
        let mut out = Out::default();
        for op in ops {
            out.i32(op_number(op)).bool(false).i32(-1);
            write_op(&mut out, op, self.root, self.marked(op));
        }
        out.i32(-1).bool(true).i32(-1);
        out
    }

    fn reconnect(
        &mut self,
        client: usize,
        password: bool,
        ahead: bool,
        read_only: Option<bool>,
        timeout_ms: i32,
    ) {
        let Some(old) = self.clients[client].take() else { return };
        let mut session = old.session.clone();
        let last_zxid = old.last_zxid;
        drop(old);
        if !password {
            session.password = vec![1; 16];
        }
        let greeting = Greeting {
            last_zxid: if ahead { last_zxid + 1_000_000 } else { last_zxid },
            timeout_ms,
            id: session.id,
            password: Some(session.password),
            read_only,
        };
        match Client::connect(self.port, &greeting) {
            Err(silence) => {
                self.say(format!("{silence:?}"));
                self.begin(client);
            }
            Ok(mut connected) if connected.session.id == 0 => {
                let said = &connected.session;
                let line = format!(
                    "refused: timeout {} password of {} read-only {:?}",
                    said.timeout_ms,
                    said.password.len(),
                    said.read_only
                );
                self.say(line);
                self.say(format!("then {:?}", connected.frame().err()));
                self.begin(client);
            }
            Ok(connected) => {
                let said = &connected.session;
                let line = format!(
                    "resumed: {} timeout {} password of {} read-only {:?}",
                    self.owners.get(&said.id).map_or("another session", |owner| owner),
                    said.timeout_ms,
                    said.password.len(),
                    said.read_only
                );
                self.say(line);
                self.adopt(client, connected);
            }
        }
    }

    /// Sends a request and writes down all that comes up to its answer.
    fn exchange(
        &mut self,
        client: usize,
        op: i32,
        body: Out,
        read: impl FnOnce(&mut Self, &mut In<'_>) -> Option<()>,
    ) {
        let Some(mut connection) = self.clients[client].take() else {
            self.say("no connection");
            return;
        };
        let xid = match op {
            11 => -2,
            100 => -4,
            101 | 105 => -8,
            _ => connection.xid(),
        };
        let mut out = Out::default();
        out.i32(xid).i32(op);
        out.0.extend_from_slice(&body.0);
        connection.send(&out.0);
        let unimplemented;
        let answer = self.until_answer(&mut connection, xid);
        match answer {
            Err(silence) => {
                self.say(format!("{silence:?}"));
                self.begin(client);
                return;
            }
            Ok((code, frame)) => {
                let mut input = In(&frame);
                self.say(format!("err {code}"));
                unimplemented = code == UNIMPLEMENTED;
                let understood = if code == 0 || !input.0.is_empty() {
                    read(self, &mut input)
                } else {
                    Some(())
                };
                if understood.is_none() {
                    self.say("cut short");
                }
                if !input.0.is_empty() {
                    self.say(format!("and {} bytes more", input.0.len()));
                }
            }
        }
        self.clients[client] = Some(connection);
        // What ends the connection after its answer shows now, and not in a later step.
        if unimplemented {
            // The server closes it when it comes to it: a request would race with that.
            let closed = self.clients[client].take().map(|mut last| last.frame());
            self.say(format!("then {:?}", closed.map(|frame| frame.err())));
            self.begin(client);
        } else if op != OP_CLOSE {
            self.look(client, "after it", false);
        }
    }

    fn until_answer(
        &mut self,
        connection: &mut Client,
        xid: i32,
    ) -> Result<(i32, Vec<u8>), Silence> {
        loop {
            let frame = connection.frame()?;
            let mut input = In(&frame);
            let answered = input.i32().unwrap_or(0);
            let zxid = input.i64().unwrap_or(0);
            let code = input.i32().unwrap_or(0);
            if answered == XID_NOTIFICATION && xid != XID_NOTIFICATION {
                self.notification(zxid, code, &mut input);
                continue;
            }
            if zxid > 0 {
                if zxid < connection.last_zxid {
                    self.say("ZXID WENT BACK");
                }
                connection.last_zxid = zxid;
            }
            if answered != xid {
                self.say(format!("xid {answered} instead of {xid}"));
            }
            return Ok((code, input.0.to_vec()));
        }
    }

    fn notification(&mut self, zxid: i64, code: i32, input: &mut In<'_>) {
        let (kind, state) = (input.i32().unwrap_or(-9), input.i32().unwrap_or(-9));
        let path = input.string().unwrap_or_default();
        self.zxids.push(zxid);
        let path = self.masked(&path);
        self.say(format!("[event {kind} state {state} {path} err {code}]"));
    }

    /// Brings out what the others were told: a read comes after it on each connection.
    fn others(&mut self, client: usize, sorted: bool) {
        for other in (0..CLIENTS).filter(|other| *other != client) {
            self.look(other, &format!("client {other}:"), sorted);
        }
    }

    fn look(&mut self, client: usize, who: &str, sorted: bool) {
        let Some(mut connection) = self.clients[client].take() else { return };
        let mut out = Out::default();
        let xid = connection.xid();
        out.i32(xid).i32(3).string("/").bool(false);
        connection.send(&out.0);
        let line = std::mem::take(&mut self.line);
        let from = self.zxids.len();
        let answer = self.until_answer(&mut connection, xid);
        let mut told = std::mem::replace(&mut self.line, line);
        if sorted {
            // The ephemerals of a session go in the order of a hash table.
            let mut events: Vec<&str> = told.split_inclusive("] ").collect();
            events.sort_unstable();
            told = events.concat();
            self.zxids[from..].sort_unstable();
        }
        if !told.is_empty() {
            self.say(format!("{who} {told}"));
        }
        match answer {
            Ok((0, _)) => self.clients[client] = Some(connection),
            Ok((code, _)) => {
                self.say(format!("{who} err {code}"));
                self.clients[client] = Some(connection);
            }
            Err(silence) => {
                self.say(format!("{who} {silence:?}"));
                self.begin(client);
            }
        }
    }

    fn masked(&self, path: &str) -> String {
        path.replace(self.root, "~").escape_debug().to_string()
    }

    fn read(&mut self, op: &Op, input: &mut In<'_>) -> Option<()> {
        match op {
            Op::Create { op, .. } => {
                self.read_path(input)?;
                if *op != 1 {
                    self.read_stat(input)?;
                }
            }
            Op::Exists { .. } | Op::SetData { .. } | Op::SetAcl { .. } => self.read_stat(input)?,
            Op::GetData { .. } => {
                self.read_data(input)?;
                self.read_stat(input)?;
            }
            Op::GetAcl { .. } => {
                self.read_acl(input)?;
                self.read_stat(input)?;
            }
            Op::Children { stat, .. } => {
                self.read_names(input)?;
                if *stat {
                    self.read_stat(input)?;
                }
            }
            Op::Sync { .. } => self.read_path(input)?,
            Op::Ephemerals { .. } => self.read_names(input)?,
            Op::Count { .. } | Op::AddWatch { .. } => {
                let number = input.i32()?;
                self.say(format!("{number}"));
            }
            Op::WhoAmI => {
                let mut ids = (0..input.i32()?)
                    .map(|_| Some(format!("{}:{}", input.string()?, input.string()?)))
                    .collect::<Option<Vec<_>>>()?;
                ids.sort();
                self.say(format!("{ids:?}"));
            }
            Op::Delete { .. }
            | Op::Check { .. }
            | Op::CheckWatches { .. }
            | Op::SetWatches { .. }
            | Op::Auth { .. }
            | Op::Ping => {}
        }
        Some(())
    }

    fn read_multi(&mut self, input: &mut In<'_>) -> Option<()> {
        loop {
            let (kind, done, code) = (input.i32()?, input.bool()?, input.i32()?);
            if done {
                self.say(format!("end {kind} {code}"));
                return Some(());
            }
            self.say(format!("| {kind} {code}"));
            match kind {
                OP_ERROR => {
                    let error = input.i32()?;
                    self.say(format!("error {error}"));
                }
                1 => self.read_path(input)?,
                15 | 19 | 21 => {
                    self.read_path(input)?;
                    self.read_stat(input)?;
                }
                5 => self.read_stat(input)?,
                4 => {
                    self.read_data(input)?;
                    self.read_stat(input)?;
                }
                8 => self.read_names(input)?,
                2 | 13 => {}
                _ => return None,
            }
        }
    }

    fn read_path(&mut self, input: &mut In<'_>) -> Option<()> {
        let path = input.string()?;
        let path = self.masked(&path);
        self.say(path);
        Some(())
    }

    fn read_names(&mut self, input: &mut In<'_>) -> Option<()> {
        let mut names = input.strings()?;
        if let Some(names) = &mut names {
            // The root has the trees of other scripts as well, which come and go.
            names.sort();
            for name in names.iter_mut() {
                *name = self.masked(name);
            }
        }
        self.say(format!("{names:?}"));
        Some(())
    }

    fn read_data(&mut self, input: &mut In<'_>) -> Option<()> {
        match input.buffer()? {
            None => self.say("null"),
            Some(data) if data.len() > 16 => self.say(format!("{} bytes", data.len())),
            Some(data) => self.say(format!("{data:?}")),
        }
        Some(())
    }

    fn read_acl(&mut self, input: &mut In<'_>) -> Option<()> {
        let count = input.i32()?;
        let mut text = format!("acl {count}:");
        for _ in 0..count {
            let (perms, scheme, id) = (input.i32()?, input.string()?, input.string()?);
            let _ = write!(text, " {perms}={scheme}:{id}");
        }
        self.say(text);
        Some(())
    }

    fn read_stat(&mut self, input: &mut In<'_>) -> Option<()> {
        let (czxid, mzxid, ctime, mtime) = (input.i64()?, input.i64()?, input.i64()?, input.i64()?);
        let (version, cversion, aversion) = (input.i32()?, input.i32()?, input.i32()?);
        let owner = input.i64()?;
        let (length, children) = (input.i32()?, input.i32()?);
        let pzxid = input.i64()?;
        self.zxids.extend([czxid, mzxid, pzxid]);
        let owner = match owner {
            0 => "-".to_owned(),
            id => self.owners.get(&id).cloned().unwrap_or_else(|| format!("{id:x}?")),
        };
        let times = if mtime < ctime { " MODIFIED BEFORE IT WAS MADE" } else { "" };
        self.say(format!(
            "<v{version} c{cversion} a{aversion} {owner} {length}B {children}ch{times}>"
        ));
        Some(())
    }
}

fn end(mut client: Client) {
    let _ = client.ask(OP_CLOSE, &[]);
}

fn remove(client: &mut Client, path: &str) {
    let mut out = Out::default();
    out.string(path).bool(false);
    if let Ok((0, body)) = client.ask(8, &out.0) {
        for name in In(&body).strings().flatten().unwrap_or_default() {
            remove(client, &format!("{path}/{name}"));
        }
        let mut out = Out::default();
        out.string(path).i32(-1);
        let _ = client.ask(2, &out.0);
    }
}

fn op_number(op: &Op) -> i32 {
    match op {
        Op::Create { op, .. } => *op,
        Op::Delete { .. } => 2,
        Op::Exists { .. } => 3,
        Op::GetData { .. } => 4,
        Op::SetData { .. } => 5,
        Op::GetAcl { .. } => 6,
        Op::SetAcl { .. } => 7,
        Op::Children { stat: false, .. } => 8,
        Op::Sync { .. } => 9,
        Op::Ping => 11,
        Op::Children { stat: true, .. } => 12,
        Op::Check { .. } => 13,
        Op::CheckWatches { remove: false, .. } => 17,
        Op::CheckWatches { remove: true, .. } => 18,
        Op::Auth { .. } => 100,
        Op::SetWatches { two: false, .. } => 101,
        Op::Ephemerals { .. } => 103,
        Op::Count { .. } => 104,
        Op::SetWatches { two: true, .. } => 105,
        Op::AddWatch { .. } => 106,
        Op::WhoAmI => 107,
    }
}

fn write_op(out: &mut Out, op: &Op, root: &str, zxid: i64) {
    match op {
        Op::Create { op, path, data, acl, flags, ttl } => {
            write_path(out, path, root);
            out.buffer(data.0.as_deref());
            write_acl(out, *acl);
            out.i32(*flags);
            if *op == 21 {
                out.i64(*ttl);
            }
        }
        Op::Delete { path, version } | Op::Check { path, version } => {
            write_path(out, path, root);
            out.i32(*version);
        }
        Op::Exists { path, watch }
        | Op::GetData { path, watch }
        | Op::Children { path, watch, .. } => {
            write_path(out, path, root);
            out.bool(*watch);
        }
        Op::SetData { path, data, version } => {
            write_path(out, path, root);
            out.buffer(data.0.as_deref()).i32(*version);
        }
        Op::SetAcl { path, acl, version } => {
            write_path(out, path, root);
            write_acl(out, *acl);
            out.i32(*version);
        }
        Op::GetAcl { path }
        | Op::Sync { path }
        | Op::Count { path }
        | Op::Ephemerals { prefix: path } => write_path(out, path, root),
        Op::AddWatch { path, mode: number } | Op::CheckWatches { path, kind: number, .. } => {
            write_path(out, path, root);
            out.i32(*number);
        }
        Op::SetWatches { two, lists, .. } => {
            out.i64(zxid);
            for list in lists.iter().take(if *two { 5 } else { 3 }) {
                out.i32(list.len() as i32);
                for path in list {
                    write_path(out, path, root);
                }
            }
        }
        Op::Auth { scheme, auth } => {
            out.i32(0).string(scheme).string(auth);
        }
        Op::WhoAmI | Op::Ping => {}
    }
}

fn write_path(out: &mut Out, path: &Path, root: &str) {
    match path {
        Path::Own(rest) => out.string(&format!("{root}{rest}")),
        Path::Absolute(path) => out.string(path),
        Path::Null => out.buffer(None),
    };
}

fn write_acl(out: &mut Out, acl: Acl) {
    let entries: &[(i32, &str, &str)] = match acl {
        Acl::Open => &[(31, "world", "anyone")],
        Acl::Creator => &[(31, "auth", "")],
        Acl::Reader => &[(1, "world", "anyone")],
        Acl::Digest => &[(31, "digest", "u:IEEmrmyTTjx3OcNCFJzBZcpCO8c=")],
        Acl::Address => &[(31, "ip", "127.0.0.1/8"), (1, "world", "anyone")],
        Acl::OpenAndDigest => {
            &[(31, "digest", "v:x"), (15, "world", "anyone"), (31, "digest", "v:x")]
        }
        Acl::Unknown => &[(31, "nothing", "x")],
        Acl::BadDigest => &[(31, "digest", "nocolon")],
        Acl::Empty => &[],
        Acl::Null => {
            out.i32(-1);
            return;
        }
    };
    out.i32(entries.len() as i32);
    for (perms, scheme, id) in entries {
        out.i32(*perms).string(scheme).string(id);
    }
}
