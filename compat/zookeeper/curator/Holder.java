import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;

/**
 * A JVM of its own that holds a lock, to be paused; says what it learns. Its session is short, so that the pause may
 * be, and yet outlasts a machine that stands still for some seconds before the pause.
 */
public final class Holder {
    public static void main(String[] args) throws Exception {
        CountDownLatch lost = new CountDownLatch(1);
        CuratorFramework client = Main.client(args[0], 10_000);
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
