// The lock and watch behaviours that node-zookeeper-client is used for, against a server: node main.js HOST:PORT[,…].
// The client has no lock of its own: the classic recipe stands here. A line for each, and the counts at the end.
'use strict';
const { fork } = require('child_process');
const zookeeper = require('node-zookeeper-client');

// The end of a wait in vain, not a measure of speed.
const SOON = 120000;
const { CreateMode, Event, Exception } = zookeeper;

function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error('waited for ' + what)), SOON);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

function connect(servers, sessionTimeout = 30000) {
  const client = zookeeper.createClient(servers, { sessionTimeout });
  const connected = new Promise((resolve) => client.once('connected', resolve));
  client.connect();
  return within(connected, 'a session').then(() => client);
}

// The client's calls as promises; a watcher, where there is one, comes first.
function ask(client, call, ...args) {
  return within(new Promise((resolve, reject) => {
    client[call](...args, (error, ...results) => (error ? reject(error) : resolve(results.length > 1 ? results : results[0])));
  }), call);
}

function check(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

async function refused(promise, code) {
  const error = await promise.then(() => null, (e) => e);
  check(error && error.getCode && error.getCode() === code, `${error} instead of ${code}`);
}

async function event(promise, type, path) {
  const seen = await within(promise, `event ${type} of ${path}`);
  check(seen.type === type && seen.path === path, `${seen} instead of ${type} ${path}`);
}

function watched() {
  let watcher;
  const fired = new Promise((resolve) => { watcher = resolve; });
  return [watcher, fired];
}

// The classic recipe: lowest sequence number holds, each other one watches the one before it.
async function acquire(client, path) {
  const node = await ask(client, 'create', path + '/lock-', Buffer.from('x'), CreateMode.EPHEMERAL_SEQUENTIAL);
  const name = node.slice(path.length + 1);
  for (;;) {
    const [children] = await ask(client, 'getChildren', path);
    children.sort();
    const index = children.indexOf(name);
    if (index === 0) return node;
    const [watcher, fired] = watched();
    if (await ask(client, 'exists', `${path}/${children[index - 1]}`, watcher)) await within(fired, 'the one before');
  }
}

const tests = {
  async 'a lock excludes, in order'([a, b, c]) {
    await ask(a, 'mkdirp', '/node/lock');
    const held = await acquire(a, '/node/lock');
    const order = [];
    const waiters = [];
    for (const [number, client] of [b, c, b].entries()) {
      waiters.push(acquire(client, '/node/lock').then(async (node) => {
        order.push(number);
        await ask(client, 'remove', node);
      }));
      for (;;) {
        const [children] = await ask(a, 'getChildren', '/node/lock');
        if (children.length === number + 2) break;
      }
    }
    check(order.length === 0, 'two hold the lock');
    await ask(a, 'remove', held);
    await Promise.all(waiters);
    check(order.join() === '0,1,2', 'served in the order ' + order);
  },

  async 'a lock ends with its session'([a], servers) {
    await ask(a, 'mkdirp', '/node/session');
    const other = await connect(servers);
    await acquire(other, '/node/session');
    const next = acquire(a, '/node/session');
    other.close();
    await next;
  },

  async 'a lock ends with its process'([a], servers) {
    await ask(a, 'mkdirp', '/node/process');
    const child = fork(__filename, [servers, 'hold']);
    await within(new Promise((resolve) => child.once('message', resolve)), 'the child');
    child.kill('SIGKILL');
    await acquire(a, '/node/process');
  },

  async 'watches tell'([a, b]) {
    await ask(a, 'create', '/node/watch', Buffer.from('1'));
    const [dataWatcher, data] = watched();
    const [childWatcher, children] = watched();
    const [existsWatcher, exists] = watched();
    check((await ask(a, 'getData', '/node/watch', dataWatcher))[0].toString() === '1', 'other data');
    await ask(a, 'getChildren', '/node/watch', childWatcher);
    check(!(await ask(a, 'exists', '/node/watch/child', existsWatcher)), 'it is there');
    await ask(b, 'setData', '/node/watch', Buffer.from('2'), 0);
    await event(data, Event.NODE_DATA_CHANGED, '/node/watch');
    await ask(b, 'create', '/node/watch/child', null, CreateMode.EPHEMERAL);
    await event(exists, Event.NODE_CREATED, '/node/watch/child');
    await event(children, Event.NODE_CHILDREN_CHANGED, '/node/watch');
    const [goneWatcher, gone] = watched();
    await ask(a, 'exists', '/node/watch/child', goneWatcher);
    await ask(b, 'remove', '/node/watch/child');
    await event(gone, Event.NODE_DELETED, '/node/watch/child');
  },

  async 'watches fire once'([a, b]) {
    await ask(a, 'create', '/node/once');
    let fired = 0;
    await ask(a, 'getData', '/node/once', () => { fired += 1; });
    for (let i = 0; i < 3; i++) await ask(b, 'setData', '/node/once', Buffer.from([i]));
    // The client knows no sync, and a's server may lag.
    for (;;) {
      const [, stat] = await ask(a, 'getData', '/node/once');
      if (stat.version === 3) break;
    }
    check(fired === 1, `fired ${fired} times`);
  },

  async 'transactions'([a]) {
    const results = await ask(a.transaction()
      .create('/node/multi', Buffer.from('x'))
      .setData('/node/multi', Buffer.from('y'), 0)
      .check('/node/multi', 1)
      .remove('/node/multi', 1), 'commit');
    check(results.length === 4, `${results.length} results`);
    await refused(ask(a.transaction().create('/node/multi').check('/node/none'), 'commit'), Exception.NO_NODE);
    check(!(await ask(a, 'exists', '/node/multi')), 'a failed transaction left something');
  },

  async 'errors have their codes'([a]) {
    await refused(ask(a, 'getData', '/node/none'), Exception.NO_NODE);
    await refused(ask(a, 'create', '/node'), Exception.NODE_EXISTS);
    await refused(ask(a, 'remove', '/node'), Exception.NOT_EMPTY);
    await refused(ask(a, 'setData', '/node', Buffer.from('x'), 77), Exception.BAD_VERSION);
  },

  async 'an ACL holds against others'([a, b], servers) {
    const own = await connect(servers);
    own.addAuthInfo('digest', Buffer.from('u:p'));
    await ask(own, 'create', '/node/acl', Buffer.from('secret'), zookeeper.ACL.CREATOR_ALL_ACL);
    check((await ask(own, 'getData', '/node/acl'))[0].toString() === 'secret', 'other data');
    // b's server may lag: with a write of b's own it has caught up.
    await ask(b, 'setData', '/node', Buffer.from('seen'));
    await refused(ask(b, 'getData', '/node/acl'), Exception.NO_AUTH);
    const [acls] = await ask(own, 'getACL', '/node/acl');
    check(acls.length === 1 && acls[0].id.scheme === 'digest', 'another ACL');
    own.close();
  },
};

async function main(servers) {
  let [passed, failed] = [0, 0];
  const clients = await Promise.all([connect(servers), connect(servers), connect(servers)]);
  await ask(clients[0], 'mkdirp', '/node');
  for (const [name, test] of Object.entries(tests)) {
    try {
      await within(test(clients, servers), name);
      passed += 1;
      console.log('ok     ', name);
    } catch (error) {
      failed += 1;
      console.log('FAILED ', name + ':', error.message || error);
    }
  }
  clients.forEach((client) => client.close());
  console.log(`PASSED ${passed} FAILED ${failed} SKIPPED 0`);
  setTimeout(() => process.exit(failed ? 1 : 0), 100);
}

// A session so short may end before it holds: then another one begins.
async function hold(servers) {
  const client = await connect(servers, 4000);
  client.once('expired', () => hold(servers));
  await acquire(client, '/node/process');
  process.send('held');
}

if (process.argv[3] === 'hold') {
  process.on('unhandledRejection', () => {});
  hold(process.argv[2]);
} else {
  main(process.argv[2]).catch((error) => {
    console.log('cannot run:', error.message || error);
    process.exit(2);
  });
}
