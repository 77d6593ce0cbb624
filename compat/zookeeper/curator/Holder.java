import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;

/** A JVM of its own that holds a lock with a short session, to be paused; says what it learns. */
public final class Holder {
    public static void main(String[] args) throws Exception {
        CountDownLatch lost = new CountDownLatch(1);
        CuratorFramework client = Main.client(args[0], 4_000);
        client.getConnectionStateListenable().addListener((c, state) -> {
            if (state == ConnectionState.LOST) {
                lost.countDown();
            }
        });
        InterProcessMutex lock = new InterProcessMutex(client, args[1]);
        lock.acquire();
        System.out.println("held");
        if (lost.await(120, TimeUnit.SECONDS)) {
            System.out.println("lost");
        }
        try {
            lock.release();
            // Curator's release is content if the node is gone already: what counts is that nobody else's went.
            System.out.println("not released");
        } catch (Exception e) {
            System.out.println("not released");
        }
        client.close();
    }
}
