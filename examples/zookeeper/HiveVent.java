import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher.Event;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

/**
 * The lock recipe with nothing but ZooKeeper's own client: an ephemeral sequential node, and a watch on the one
 * before it. Several workers, each with a connection of its own, open the vent one after the other.
 *
 * <pre>java HiveVent HOST:PORT[,HOST:PORT…] WORKERS</pre>
 */
public final class HiveVent {
    private final ZooKeeper zk;
    private final String lockPath = "/locks/hiveVent";
    private String sequentialNode;

    private HiveVent(String servers) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        zk = new ZooKeeper(servers, 30_000, event -> {
            if (event.getState() == Event.KeeperState.SyncConnected) {
                connected.countDown();
            }
        });
        connected.await();
    }

    private void acquire() throws Exception {
        // Acquire lock
        sequentialNode = zk.create(lockPath + "/lock-", new byte[0],
                ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL_SEQUENTIAL);
        String myNode = sequentialNode.substring(lockPath.length() + 1);

        // Watch predecessor
        while (true) {
            List<String> children = zk.getChildren(lockPath, false);
            Collections.sort(children);
            int index = children.indexOf(myNode);
            if (index == 0) {
                // I am the smallest -> lock acquired
                break;
            }
            String predecessor = children.get(index - 1);
            // The watch may fire before this thread waits for it: whether it did has to be kept.
            boolean[] gone = {false};
            Stat stat = zk.exists(lockPath + "/" + predecessor, watchedEvent -> {
                if (watchedEvent.getType() == Event.EventType.NodeDeleted) {
                    synchronized (this) {
                        gone[0] = true;
                        this.notify();
                    }
                }
            });
            if (stat != null) {
                synchronized (this) {
                    while (!gone[0]) {
                        this.wait();
                    }
                }
            }
        }
    }

    private void release() throws Exception {
        zk.delete(sequentialNode, -1);
        zk.close();
    }

    private static void ensure(ZooKeeper zk, String path) throws Exception {
        try {
            zk.create(path, new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        } catch (KeeperException.NodeExistsException e) {
            // Another one was here before.
        }
    }

    public static void main(String[] args) throws Exception {
        HiveVent first = new HiveVent(args[0]);
        ensure(first.zk, "/locks");
        ensure(first.zk, first.lockPath);
        first.acquire();

        AtomicInteger inside = new AtomicInteger(1);
        List<String> order = Collections.synchronizedList(new ArrayList<>());
        List<Thread> workers = new ArrayList<>();
        boolean[] broken = {false};
        for (int i = 0; i < Integer.parseInt(args[1]); i++) {
            Thread worker = new Thread(() -> {
                try {
                    HiveVent vent = new HiveVent(args[0]);
                    vent.acquire();
                    broken[0] |= inside.incrementAndGet() > 1;
                    order.add(vent.sequentialNode);
                    System.out.println(vent.sequentialNode + " opens the vent");
                    Thread.sleep(20);
                    inside.decrementAndGet();
                    vent.release();
                } catch (Exception e) {
                    broken[0] = true;
                    e.printStackTrace();
                }
            });
            worker.start();
            workers.add(worker);
        }
        // All of them stand in the queue before it begins to move.
        while (first.zk.getChildren(first.lockPath, false).size() < workers.size() + 1) {
            Thread.sleep(20);
        }
        inside.decrementAndGet();
        first.release();
        for (Thread worker : workers) {
            worker.join();
        }
        List<String> sorted = new ArrayList<>(order);
        Collections.sort(sorted);
        if (broken[0] || order.size() != workers.size() || !order.equals(sorted)) {
            System.out.println("not one after the other: " + order);
            System.exit(1);
        }
    }
}
