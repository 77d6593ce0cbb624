import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryUntilElapsed;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooKeeper;

/**
 * Every recipe of Curator that issue and documentation name, in quiet, across restarts, across a change of
 * leader, across the loss of a session, and with a whole JVM paused; with one server and with three. A line
 * for each, and the counts at the end.
 */
public final class Main {
    private static final int SESSION_MS = 30_000;
    private static int passed;
    private static int failed;
    private static final ExecutorService threads = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    });

    interface Step {
        void run() throws Exception;
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        String sizes = args.length > 0 ? args[0] : "1,3";
        String only = args.length > 1 ? args[1] : "";
        for (String size : sizes.split(",")) {
            try (Cluster cluster = new Cluster(Integer.parseInt(size))) {
                suite(cluster, only);
            }
        }
        System.out.println("PASSED " + passed + " FAILED " + failed + " SKIPPED 0");
        System.exit(failed > 0 || passed == 0 ? 1 : 0);
    }

    private static void suite(Cluster cluster, String only) throws Exception {
        String servers = cluster.size() + (cluster.size() == 1 ? " server" : " servers");
        Map<String, Supplier<Recipe>> recipes = new LinkedHashMap<>(Recipes.all());
        recipes.keySet().removeIf(name -> !name.contains(only));

        for (Map.Entry<String, Supplier<Recipe>> each : recipes.entrySet()) {
            try (CuratorFramework a = client(cluster, SESSION_MS); CuratorFramework b = client(cluster, SESSION_MS)) {
                Recipe recipe = each.getValue().get();
                report(servers, each.getKey(), "in quiet", () -> {
                    recipe.plain(a, b, "/quiet/" + each.getKey());
                    recipe.close();
                });
            }
        }
        across(cluster, servers, recipes, "after a restart", () -> restartAll(cluster, false));
        across(cluster, servers, recipes, "after a kill", () -> restartAll(cluster, true));
        if (cluster.size() > 1) {
            across(cluster, servers, recipes, "after the leader's death", cluster::replaceLeader);
        }
        for (Map.Entry<String, Supplier<Recipe>> each : recipes.entrySet()) {
            try (CuratorFramework a = client(cluster, SESSION_MS); CuratorFramework b = client(cluster, SESSION_MS)) {
                Recipe recipe = each.getValue().get();
                report(servers, each.getKey(), "after its session's end", () -> {
                    recipe.begin(a, b, "/lost/" + each.getKey());
                    endSession(cluster, a);
                    recipe.lost();
                    recipe.close();
                });
            }
        }
        report(servers, "InterProcessMutex", "with the holder's JVM paused", () -> paused(cluster));
    }

    /** One disturbance for all recipes at once: each begins before it, and each is looked at after it. */
    private static void across(
            Cluster cluster, String servers, Map<String, Supplier<Recipe>> recipes, String what, Step disturbance)
            throws Exception {
        String path = "/" + what.replaceAll("[^a-z]", "-") + "/";
        try (CuratorFramework a = client(cluster, SESSION_MS); CuratorFramework b = client(cluster, SESSION_MS)) {
            long session = a.getZookeeperClient().getZooKeeper().getSessionId();
            Map<String, Recipe> begun = new LinkedHashMap<>();
            for (Map.Entry<String, Supplier<Recipe>> each : recipes.entrySet()) {
                Recipe recipe = each.getValue().get();
                try {
                    within(180, () -> recipe.begin(a, b, path + each.getKey()));
                    begun.put(each.getKey(), recipe);
                } catch (Throwable e) {
                    report(servers, each.getKey(), what, () -> { throw new AssertionError("before it: " + e, e); });
                }
            }
            disturbance.run();
            await("the clients to be connected again", 120, () -> connected(a) && connected(b));
            for (Map.Entry<String, Recipe> each : begun.entrySet()) {
                report(servers, each.getKey(), what, () -> {
                    check(a.getZookeeperClient().getZooKeeper().getSessionId() == session, "the session is another one");
                    each.getValue().survived();
                    each.getValue().close();
                });
            }
        }
    }

    private static void restartAll(Cluster cluster, boolean kill) throws Exception {
        for (int i = 0; i < cluster.size(); i++) {
            cluster.restart(i, kill);
        }
    }

    private static boolean connected(CuratorFramework client) {
        return client.getZookeeperClient().isConnected();
    }

    /** Ends the client's session behind its back, and waits until it has noticed and has another one. */
    private static void endSession(Cluster cluster, CuratorFramework client) throws Exception {
        ZooKeeper own = client.getZookeeperClient().getZooKeeper();
        long id = own.getSessionId();
        byte[] password = own.getSessionPasswd();
        Condition another = () -> connected(client)
                && client.getZookeeperClient().getZooKeeper().getSessionId() != id
                && client.getZookeeperClient().getZooKeeper().getSessionId() != 0;
        for (int tries = 1; !another.holds(); tries++) {
            check(tries <= 10, "the session could not be ended");
            BlockingQueue<Watcher.Event.KeeperState> states = new LinkedBlockingQueue<>();
            ZooKeeper thief = new ZooKeeper(
                    cluster.connectString(), SESSION_MS, event -> states.add(event.getState()), id, password);
            states.poll(30, TimeUnit.SECONDS);
            thief.close();
            // The client is back within a second: from a thief that is slower it takes its session back alive.
            for (int i = 0; i < 500 && !another.holds(); i++) {
                Thread.sleep(20);
            }
        }
    }

    /** A whole JVM that holds a lock is stopped for longer than its session may be silent. */
    private static void paused(Cluster cluster) throws Exception {
        Process holder = new ProcessBuilder(
                        ProcessHandle.current().info().command().orElse("java"), "-cp",
                        System.getProperty("java.class.path"), "Holder", cluster.connectString(), "/paused")
                .redirectError(ProcessBuilder.Redirect.DISCARD)
                .start();
        BlockingQueue<String> said = new LinkedBlockingQueue<>();
        threads.submit(() -> holder.inputReader().lines().forEach(said::add));
        try (CuratorFramework b = client(cluster, SESSION_MS)) {
            check("held".equals(said.poll(120, TimeUnit.SECONDS)), "the holder did not get the lock");
            InterProcessMutex lock = new InterProcessMutex(b, "/paused");
            check(!lock.acquire(500, TimeUnit.MILLISECONDS), "two hold the lock");
            signal("STOP", holder);
            check(lock.acquire(120, TimeUnit.SECONDS), "the lock was not passed on");
            signal("CONT", holder);
            check("lost".equals(said.poll(120, TimeUnit.SECONDS)), "the holder was not told");
            check("not released".equals(said.poll(120, TimeUnit.SECONDS)), "the holder released what it had not");
            check(lock.isOwnedByCurrentThread(), "the second holder lost it");
            check(lock.getParticipantNodes().size() == 1, "there is more than the one holder");
            lock.release();
        } finally {
            holder.destroyForcibly();
            holder.waitFor();
        }
    }

    private static void signal(String name, Process process) throws Exception {
        check(new ProcessBuilder("kill", "-" + name, "" + process.pid()).start().waitFor() == 0, "kill -" + name);
    }

    static CuratorFramework client(Cluster cluster, int sessionMs) throws Exception {
        return client(cluster.connectString(), sessionMs);
    }

    static CuratorFramework client(String servers, int sessionMs) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.builder()
                .connectString(servers)
                .sessionTimeoutMs(sessionMs)
                .connectionTimeoutMs(15_000)
                .retryPolicy(new RetryUntilElapsed(60_000, 200))
                .build();
        client.start();
        check(client.blockUntilConnected(120, TimeUnit.SECONDS), "no connection");
        return client;
    }

    static void await(String what, int seconds, Condition condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (!condition.holds()) {
            check(System.nanoTime() < end, "waited " + seconds + " s for " + what);
            Thread.sleep(20);
        }
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static <T> java.util.concurrent.Future<T> async(Callable<T> task) {
        return threads.submit(task);
    }

    private static void within(int seconds, Step step) throws Throwable {
        // The recipe's locks belong to threads, so begin, survived and lost must share one: the main one.
        Thread main = Thread.currentThread();
        var alarm = threads.submit(() -> {
            Thread.sleep(seconds * 1000L);
            main.interrupt();
            return null;
        });
        try {
            step.run();
        } finally {
            alarm.cancel(true);
            try {
                alarm.get();
            } catch (ExecutionException | java.util.concurrent.CancellationException | InterruptedException e) {
                // It was called off, or it rang and was heard.
            }
            Thread.interrupted();
        }
    }

    private static void report(String servers, String recipe, String what, Step step) {
        String line = servers + ": " + recipe + " " + what;
        try {
            within(300, step);
            passed++;
            System.out.println("ok     " + line);
        } catch (Throwable e) {
            failed++;
            System.out.println("FAILED " + line + ": " + e);
            List<String> where = new ArrayList<>();
            for (StackTraceElement frame : e.getStackTrace()) {
                if (frame.getFileName() != null && frame.getFileName().matches("(Main|Recipes|Cluster).java")) {
                    where.add(frame.toString());
                }
            }
            System.out.println("       at " + String.join(" < ", where));
        }
        System.out.flush();
    }
}
