import java.util.Collections;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.data.Stat;

/**
 * One worker of many that were given the same request: only the one with the lowest node under /dedup/KEY executes
 * it, the others wait behind it. With Apache Curator; dedup_worker.py is the same with kazoo. In production use
 * Curator's InterProcessMutex; this shows what it does.
 *
 * <pre>java DedupWorker HOST:PORT[,HOST:PORT…] KEY PAYLOAD-HASH [SESSION-MS]</pre>
 *
 * Says `waiting`, `executing NODE`, `suspended`, `aborted`; a line on the standard input releases the lock.
 */
public final class DedupWorker {
    private final String idempotencyKey;
    private final String basePath;
    private final CuratorFramework client;
    private String myPath;
    private boolean aborted;

    private DedupWorker(String servers, String key, int sessionMs) {
        idempotencyKey = key;
        basePath = "/dedup/" + idempotencyKey;
        client = CuratorFrameworkFactory.newClient(servers, sessionMs, 5_000, new ExponentialBackoffRetry(1000, 3));
        client.getConnectionStateListenable().addListener((c, newState) -> {
            if (newState == ConnectionState.LOST) {
                // Session expired. Any in-flight business logic under this lock must be treated as unsafe — abort,
                // do not commit downstream effects, and let the retry path re-enter with a fresh idempotency check.
                abortInFlightOperation(idempotencyKey);
            } else if (newState == ConnectionState.SUSPENDED) {
                // Connectivity lost but session not yet expired — pause, do not abort yet.
                say("suspended");
            }
        });
        client.start();
    }

    private void run(byte[] payloadHash) throws Exception {
        client.createContainers(basePath); // idempotent parent creation
        myPath = client.create()
                .withMode(CreateMode.EPHEMERAL_SEQUENTIAL)
                .forPath(basePath + "/lock-", payloadHash);
        recheckOwnership();
    }

    private void recheckOwnership() {
        try {
            List<String> children = client.getChildren().forPath(basePath);
            Collections.sort(children); // lexicographic sort works because sequence is zero-padded to 10 digits
            String myNode = myPath.substring(basePath.length() + 1);
            if (children.get(0).equals(myNode)) {
                executeBusinessLogic(idempotencyKey);
            } else {
                watchPredecessor(children, myNode);
            }
        } catch (Exception e) {
            abortInFlightOperation(idempotencyKey);
        }
    }

    private void watchPredecessor(List<String> children, String myNode) throws Exception {
        int myIndex = children.indexOf(myNode);
        String predecessor = children.get(myIndex - 1);
        say("waiting");
        Stat stat = client.checkExists()
                .usingWatcher((Watcher) (WatchedEvent event) -> {
                    if (event.getType() == Watcher.Event.EventType.NodeDeleted) {
                        recheckOwnership(); // re-list and compare again
                    }
                })
                .forPath(basePath + "/" + predecessor);
        if (stat == null) {
            recheckOwnership(); // predecessor already gone — race with our own listing
        }
    }

    private void executeBusinessLogic(String key) {
        say("executing " + myPath);
    }

    private synchronized void abortInFlightOperation(String key) {
        if (!aborted) {
            aborted = true;
            say("aborted");
        }
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    public static void main(String[] args) throws Exception {
        DedupWorker worker = new DedupWorker(args[0], args[1], args.length > 3 ? Integer.parseInt(args[3]) : 12_000);
        worker.run(args[2].getBytes());
        System.in.read();
        if (!worker.aborted) {
            worker.client.delete().forPath(worker.myPath);
        }
        worker.client.close();
    }
}
