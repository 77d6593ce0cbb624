import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.atomic.AtomicValue;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.atomic.PromotedToLock;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.leader.CancelLeadershipException;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.queue.DistributedDelayQueue;
import org.apache.curator.framework.recipes.queue.DistributedIdQueue;
import org.apache.curator.framework.recipes.queue.DistributedPriorityQueue;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBase;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.shared.SharedCountListener;
import org.apache.curator.framework.recipes.shared.SharedCountReader;
import org.apache.curator.framework.recipes.shared.VersionedValue;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.data.Stat;

/** The recipes, each as {@link Recipe} wants it. */
final class Recipes {
    /** Seconds that what is about to happen may take: no measure of speed, but the end of a wait in vain. */
    private static final int SOON = 60;
    /** Seconds that a waiter begun before a disturbance waits at most: it must outlast it, and all other recipes. */
    private static final int LONG = 900;

    static Map<String, Supplier<Recipe>> all() {
        Map<String, Supplier<Recipe>> all = new LinkedHashMap<>();
        all.put("InterProcessMutex", Mutex::new);
        all.put("InterProcessMutex-reentrant", Reentrant::new);
        all.put("InterProcessMutex-revocable", Revocable::new);
        all.put("InterProcessReadWriteLock", ReadWrite::new);
        all.put("InterProcessSemaphoreV2", Semaphore::new);
        all.put("InterProcessMultiLock", MultiLock::new);
        all.put("LeaderLatch", Latch::new);
        all.put("LeaderSelector", Selector::new);
        all.put("DistributedBarrier", Barrier::new);
        all.put("DistributedDoubleBarrier", DoubleBarrier::new);
        all.put("SharedCount", Count::new);
        all.put("DistributedAtomicLong", AtomicLongs::new);
        all.put("PersistentNode", Persistent::new);
        all.put("CuratorCache", Cache::new);
        all.put("DistributedQueue", Queue::new);
        all.put("DistributedPriorityQueue", PriorityQueue::new);
        all.put("DistributedDelayQueue", DelayQueue::new);
        all.put("DistributedIdQueue", IdQueue::new);
        all.put("SimpleDistributedQueue", SimpleQueue::new);
        all.put("GroupMember", Group::new);
        return all;
    }

    private static void check(boolean holds, String otherwise) {
        Main.check(holds, otherwise);
    }

    /** Another client may be connected to a server that is behind: with sync it has caught up. */
    private static void seenBy(CuratorFramework client, String path) throws Exception {
        CountDownLatch synced = new CountDownLatch(1);
        client.sync().inBackground((c, event) -> synced.countDown()).forPath(path);
        check(synced.await(SOON, TimeUnit.SECONDS), "no answer to sync");
    }

    private static boolean acquire(InterProcessMutex lock, int seconds) throws Exception {
        return lock.acquire(seconds, TimeUnit.SECONDS);
    }

    private static final class Mutex implements Recipe {
        private InterProcessMutex first;
        private InterProcessMutex second;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            // First come, first served: each waiter is seen in the queue before the next one comes.
            List<Integer> order = new CopyOnWriteArrayList<>();
            List<Future<?>> waiters = new ArrayList<>();
            for (int i = 0; i < 5; i++) {
                int number = i;
                CuratorFramework client = i % 2 == 0 ? b : a;
                waiters.add(Main.async(() -> {
                    InterProcessMutex lock = new InterProcessMutex(client, path);
                    lock.acquire();
                    order.add(number);
                    lock.release();
                    return null;
                }));
                Main.await("a waiter in the queue", SOON, () -> {
                    seenBy(a, path);
                    return first.getParticipantNodes().size() == number + 2;
                });
            }
            first.release();
            for (Future<?> waiter : waiters) {
                waiter.get(SOON, TimeUnit.SECONDS);
            }
            check(order.equals(List.of(0, 1, 2, 3, 4)), "served in the order " + order);
            check(b.getChildren().forPath(path).isEmpty(), "something is left of the queue");
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            first = new InterProcessMutex(a, path);
            second = new InterProcessMutex(b, path);
            check(acquire(first, SOON), "a free lock is not free");
            check(!second.acquire(200, TimeUnit.MILLISECONDS), "two hold the lock");
        }

        @Override
        public void survived() throws Exception {
            check(!second.acquire(200, TimeUnit.MILLISECONDS), "two hold the lock");
            first.release();
            check(acquire(second, SOON), "a released lock is not free");
            second.release();
        }

        @Override
        public void lost() throws Exception {
            check(acquire(second, SOON), "the lock of an ended session is not free");
            check(second.getParticipantNodes().size() == 1, "the ended session is still in the queue");
            second.release();
        }
    }

    private static final class Reentrant implements Recipe {
        private InterProcessMutex first;
        private InterProcessMutex second;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            survived();
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            first = new InterProcessMutex(a, path);
            second = new InterProcessMutex(b, path);
            check(acquire(first, SOON) && acquire(first, SOON), "the holder could not come in again");
        }

        @Override
        public void survived() throws Exception {
            check(first.getParticipantNodes().size() == 1, "coming in again made another node");
            first.release();
            check(!second.acquire(200, TimeUnit.MILLISECONDS), "free after one release of two");
            first.release();
            check(acquire(second, SOON), "not free after both releases");
            second.release();
        }

        @Override
        public void lost() throws Exception {
            check(acquire(second, SOON), "the lock of an ended session is not free");
            second.release();
        }
    }

    private static final class Revocable implements Recipe {
        private InterProcessMutex first;
        private InterProcessMutex second;
        private CuratorFramework asker;
        private String path;
        private final CountDownLatch asked = new CountDownLatch(1);

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            survived();
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            asker = b;
            first = new InterProcessMutex(a, path);
            second = new InterProcessMutex(b, path);
            this.path = path;
            first.makeRevocable(lock -> asked.countDown());
            check(acquire(first, SOON), "a free lock is not free");
            seenBy(b, path);
        }

        @Override
        public void survived() throws Exception {
            for (String node : second.getParticipantNodes()) {
                Revoker.attemptRevoke(asker, node);
            }
            check(asked.await(SOON, TimeUnit.SECONDS), "the holder was not asked to give it back");
            first.release();
            check(acquire(second, SOON), "not free after it was given back");
            second.release();
        }

        @Override
        public void lost() throws Exception {
            seenBy(asker, path);
            check(second.getParticipantNodes().isEmpty(), "the ended session still holds");
            check(acquire(second, SOON), "the lock of an ended session is not free");
            second.release();
        }
    }

    private static final class ReadWrite implements Recipe {
        private InterProcessReadWriteLock first;
        private InterProcessReadWriteLock second;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            survived();
            // The writer may read, and so keep the lock as a reader; a reader may not write.
            check(acquire(first.writeLock(), SOON), "a free lock is not free to write");
            check(acquire(first.readLock(), SOON), "the writer may not read");
            first.writeLock().release();
            check(acquire(second.readLock(), SOON), "two may not read");
            check(!second.writeLock().acquire(200, TimeUnit.MILLISECONDS), "a reader became a writer");
            second.readLock().release();
            first.readLock().release();
            // A writer who waits goes before a reader who came later.
            check(acquire(first.readLock(), SOON), "a free lock is not free to read");
            Future<Boolean> writer = Main.async(() -> {
                InterProcessReadWriteLock lock = new InterProcessReadWriteLock(b, path);
                boolean got = acquire(lock.writeLock(), SOON);
                lock.writeLock().release();
                return got;
            });
            Main.await("a writer in the queue", SOON, () -> first.writeLock().getParticipantNodes().size() == 1);
            check(!second.readLock().acquire(200, TimeUnit.MILLISECONDS), "a reader overtook a writer");
            first.readLock().release();
            check(writer.get(SOON, TimeUnit.SECONDS), "the writer did not get it");
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            first = new InterProcessReadWriteLock(a, path);
            second = new InterProcessReadWriteLock(b, path);
            check(acquire(first.readLock(), SOON), "a free lock is not free to read");
            check(acquire(second.readLock(), SOON), "two may not read");
            second.readLock().release();
            check(!second.writeLock().acquire(200, TimeUnit.MILLISECONDS), "somebody writes while another reads");
        }

        @Override
        public void survived() throws Exception {
            check(!second.writeLock().acquire(200, TimeUnit.MILLISECONDS), "somebody writes while another reads");
            first.readLock().release();
            check(acquire(second.writeLock(), SOON), "a free lock is not free to write");
            check(!first.readLock().acquire(200, TimeUnit.MILLISECONDS), "somebody reads while another writes");
            second.writeLock().release();
        }

        @Override
        public void lost() throws Exception {
            check(acquire(second.writeLock(), SOON), "an ended session still reads");
            second.writeLock().release();
        }
    }

    private static final class Semaphore implements Recipe {
        private InterProcessSemaphoreV2 first;
        private InterProcessSemaphoreV2 second;
        private Collection<Lease> leases;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            check(first.getParticipantNodes().size() == 3, "there are not three leases");
            survived();
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            first = new InterProcessSemaphoreV2(a, path, 3);
            second = new InterProcessSemaphoreV2(b, path, 3);
            leases = first.acquire(3, SOON, TimeUnit.SECONDS);
            check(leases != null && leases.size() == 3, "three leases of three were not there");
            check(second.acquire(200, TimeUnit.MILLISECONDS) == null, "a fourth lease of three");
        }

        @Override
        public void survived() throws Exception {
            check(second.acquire(200, TimeUnit.MILLISECONDS) == null, "a fourth lease of three");
            first.returnLease(leases.iterator().next());
            Lease lease = second.acquire(SOON, TimeUnit.SECONDS);
            check(lease != null, "a returned lease is not free");
            second.returnLease(lease);
            leases.stream().skip(1).forEach(first::returnLease);
        }

        @Override
        public void lost() throws Exception {
            Collection<Lease> all = second.acquire(3, SOON, TimeUnit.SECONDS);
            check(all != null && all.size() == 3, "the leases of an ended session are not free");
            second.returnAll(all);
        }
    }

    private static final class MultiLock implements Recipe {
        private InterProcessMultiLock first;
        private InterProcessMutex inner;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            survived();
            // All or nothing: one of them is taken, so none is kept.
            check(acquire(inner, SOON), "a free lock is not free");
            check(!first.acquire(200, TimeUnit.MILLISECONDS), "all were had although one was taken");
            InterProcessMutex other = new InterProcessMutex(b, path + "/one");
            check(acquire(other, SOON), "one was kept although another was not had");
            other.release();
            inner.release();
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            first = new InterProcessMultiLock(a, Arrays.asList(path + "/one", path + "/two"));
            inner = new InterProcessMutex(b, path + "/two");
            check(first.acquire(SOON, TimeUnit.SECONDS), "two free locks are not free");
            check(!inner.acquire(200, TimeUnit.MILLISECONDS), "two hold the lock");
        }

        @Override
        public void survived() throws Exception {
            check(!inner.acquire(200, TimeUnit.MILLISECONDS), "two hold the lock");
            first.release();
            check(acquire(inner, SOON), "not free after both were released");
            inner.release();
        }

        @Override
        public void lost() throws Exception {
            check(acquire(inner, SOON), "the lock of an ended session is not free");
            inner.release();
        }
    }

    private static final class Latch implements Recipe {
        private LeaderLatch first;
        private LeaderLatch second;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            seenBy(b, path);
            check(second.getLeader().getId().equals("a"), "b takes another for the leader");
            check(second.getParticipants().size() == 2, "there are not two participants");
            survived();
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            first = new LeaderLatch(a, path, "a");
            second = new LeaderLatch(b, path, "b");
            first.start();
            check(first.await(SOON, TimeUnit.SECONDS), "the only one does not lead");
            second.start();
            Main.await("two participants", SOON, () -> first.getParticipants().size() == 2);
            check(!second.hasLeadership(), "two lead");
        }

        @Override
        public void survived() throws Exception {
            // A latch gives the lead up while its client is suspended, and may find itself first again.
            Main.await("a leader", SOON, () -> first.hasLeadership() || second.hasLeadership());
            check(!(first.hasLeadership() && second.hasLeadership()), "two lead");
            LeaderLatch leader = first.hasLeadership() ? first : second;
            LeaderLatch other = leader == first ? second : first;
            leader.close();
            check(other.await(SOON, TimeUnit.SECONDS), "nobody leads after the leader left");
        }

        @Override
        public void lost() throws Exception {
            check(second.await(SOON, TimeUnit.SECONDS), "nobody leads after the leader's session ended");
            Main.await("the old leader behind the new one", SOON, () -> second.getParticipants().size() == 2);
            check(!first.hasLeadership(), "two lead");
        }

        @Override
        public void close() throws Exception {
            for (LeaderLatch latch : List.of(first, second)) {
                if (latch.getState() == LeaderLatch.State.STARTED) {
                    latch.close();
                }
            }
        }
    }

    private static final class Selector implements Recipe {
        private final BlockingQueue<String> leaders = new LinkedBlockingQueue<>();
        private final AtomicInteger leading = new AtomicInteger();
        private final AtomicInteger most = new AtomicInteger();
        private LeaderSelector first;
        private LeaderSelector second;

        private final class Lead extends LeaderSelectorListenerAdapter {
            private final String name;

            Lead(String name) {
                this.name = name;
            }

            @Override
            public void takeLeadership(CuratorFramework client) throws Exception {
                most.accumulateAndGet(leading.incrementAndGet(), Math::max);
                leaders.add(name);
                try {
                    Thread.sleep(600_000);
                } finally {
                    leading.decrementAndGet();
                }
            }

            @Override
            public void stateChanged(CuratorFramework client, ConnectionState state) {
                if (state == ConnectionState.LOST) {
                    throw new CancelLeadershipException();
                }
            }
        }

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            seenBy(b, path);
            check(second.getLeader().getId().equals("a"), "b takes another for the leader");
            first.interruptLeadership();
            check("b".equals(leaders.poll(SOON, TimeUnit.SECONDS)), "the lead was not passed on");
            second.interruptLeadership();
            check("a".equals(leaders.poll(SOON, TimeUnit.SECONDS)), "the first one was not queued again");
            check(most.get() == 1, "two led at once");
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            first = new LeaderSelector(a, path, new Lead("a"));
            second = new LeaderSelector(b, path, new Lead("b"));
            first.setId("a");
            second.setId("b");
            first.autoRequeue();
            second.autoRequeue();
            first.start();
            check("a".equals(leaders.poll(SOON, TimeUnit.SECONDS)), "the only one does not lead");
            second.start();
            Main.await("two participants", SOON, () -> first.getParticipants().size() == 2);
        }

        @Override
        public void survived() throws Exception {
            check(first.hasLeadership() && leaders.isEmpty(), "the lead changed although the session lived");
            first.close();
            check("b".equals(leaders.poll(SOON, TimeUnit.SECONDS)), "nobody leads after the leader left");
            check(most.get() == 1, "two led at once");
        }

        @Override
        public void lost() throws Exception {
            check("b".equals(leaders.poll(SOON, TimeUnit.SECONDS)), "nobody leads after the leader's session ended");
            Main.await("the old leader to be behind", SOON, () -> second.getParticipants().size() == 2);
            check(second.getLeader().getId().equals("b"), "another one leads");
        }

        @Override
        public void close() {
            for (LeaderSelector selector : List.of(first, second)) {
                try {
                    selector.close();
                } catch (IllegalStateException e) {
                    // It is closed already.
                }
            }
        }
    }

    private static final class Barrier implements Recipe {
        private DistributedBarrier first;
        private List<Future<Boolean>> waiters;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            survived();
            check(new DistributedBarrier(b, path).waitOnBarrier(SOON, TimeUnit.SECONDS), "no barrier, and yet one waits");
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            first = new DistributedBarrier(a, path);
            first.setBarrier();
            seenBy(b, path);
            check(!new DistributedBarrier(b, path).waitOnBarrier(200, TimeUnit.MILLISECONDS), "through a barrier");
            waiters = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                waiters.add(Main.async(() -> new DistributedBarrier(b, path).waitOnBarrier(LONG, TimeUnit.SECONDS)));
            }
        }

        @Override
        public void survived() throws Exception {
            check(waiters.stream().noneMatch(Future::isDone), "through a barrier");
            first.removeBarrier();
            for (Future<Boolean> waiter : waiters) {
                check(waiter.get(SOON, TimeUnit.SECONDS), "still waiting after the barrier was removed");
            }
        }

        @Override
        public void lost() throws Exception {
            // The barrier is a persistent node: it outlives the session that set it.
            survived();
        }
    }

    private static final class DoubleBarrier implements Recipe {
        private CuratorFramework a;
        private CuratorFramework b;
        private String path;
        private DistributedDoubleBarrier last;
        private List<Future<Boolean>> members;
        private CountDownLatch inside;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            enterAndLeave();
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            this.a = a;
            this.b = b;
            this.path = path;
            inside = new CountDownLatch(2);
            members = new ArrayList<>();
            last = new DistributedDoubleBarrier(a, path, 3);
            for (int i = 0; i < 2; i++) {
                members.add(Main.async(() -> {
                    DistributedDoubleBarrier barrier = new DistributedDoubleBarrier(b, path, 3);
                    boolean entered = barrier.enter(LONG, TimeUnit.SECONDS);
                    inside.countDown();
                    return entered && barrier.leave(LONG, TimeUnit.SECONDS);
                }));
            }
            Main.await("two members at the barrier", SOON,
                    () -> a.checkExists().forPath(path) != null && a.getChildren().forPath(path).size() == 2);
        }

        private boolean broken() throws Exception {
            // That a member was told nothing is known only after a while: it is there to wait for.
            try {
                members.get(0).get(20, TimeUnit.SECONDS);
                return true;
            } catch (TimeoutException e) {
                return false;
            } catch (ExecutionException e) {
                return true;
            }
        }

        private void enterAndLeave() throws Exception {
            check(inside.getCount() == 2, "two of three entered");
            check(last.enter(SOON, TimeUnit.SECONDS), "the third could not enter");
            check(inside.await(SOON, TimeUnit.SECONDS), "the third let nobody in");
            check(members.stream().noneMatch(Future::isDone), "two of three left");
            check(last.leave(SOON, TimeUnit.SECONDS), "the third could not leave");
            for (Future<Boolean> member : members) {
                check(member.get(SOON, TimeUnit.SECONDS), "a member did not come through");
            }
        }

        @Override
        public void survived() throws Exception {
            // Curator tells a member that waits when its connection breaks, and the member has to begin anew. Where
            // the member's own server went on, nothing happened to it.
            if (!broken()) {
                enterAndLeave();
                return;
            }
            for (Future<Boolean> member : members) {
                try {
                    member.get(SOON, TimeUnit.SECONDS);
                    check(false, "a member came through although the third was not there");
                } catch (ExecutionException e) {
                    check(e.getCause() instanceof KeeperException.ConnectionLossException, "a member was told " + e);
                }
            }
            plain(a, b, path + "-anew");
        }

        @Override
        public void lost() throws Exception {
            // The session of the third ended before it came: nothing of it was there.
            enterAndLeave();
        }
    }

    private static final class Count implements Recipe {
        private SharedCount first;
        private SharedCount second;
        private final BlockingQueue<Integer> seen = new LinkedBlockingQueue<>();

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            survived();
            VersionedValue<Integer> old = first.getVersionedValue();
            check(first.trySetCount(old, 30), "could not set the count from its last version");
            check(!first.trySetCount(old, 31), "set the count from an old version");
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            first = new SharedCount(a, path, 7);
            second = new SharedCount(b, path, 7);
            first.start();
            second.start();
            second.addListener(new SharedCountListener() {
                @Override
                public void countHasChanged(SharedCountReader count, int value) {
                    seen.add(value);
                }

                @Override
                public void stateChanged(CuratorFramework client, ConnectionState state) {}
            });
            check(first.getCount() == 7 && second.getCount() == 7, "the count does not begin with its seed");
            first.setCount(8);
            check(seen.poll(SOON, TimeUnit.SECONDS) == 8, "b was not told of the change");
        }

        @Override
        public void survived() throws Exception {
            first.setCount(9);
            Main.await("b to hear of the change", SOON, () -> second.getCount() == 9);
            Main.await("b's listener to hear of it", SOON, () -> seen.contains(9));
        }

        @Override
        public void lost() throws Exception {
            survived();
        }

        @Override
        public void close() throws Exception {
            first.close();
            second.close();
        }
    }

    private static final class AtomicLongs implements Recipe {
        private DistributedAtomicLong first;
        private DistributedAtomicLong second;
        private CuratorFramework reader;
        private String path;

        private static DistributedAtomicLong counter(CuratorFramework client, String path) {
            PromotedToLock lock = PromotedToLock.builder()
                    .lockPath(path + "-lock")
                    .timeout(SOON, TimeUnit.SECONDS)
                    .retryPolicy(new RetryNTimes(50, 5))
                    .build();
            return new DistributedAtomicLong(client, path, new RetryNTimes(3, 5), lock);
        }

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            survived();
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            reader = b;
            this.path = path;
            first = counter(a, path);
            second = counter(b, path);
            check(first.initialize(100L), "could not begin at 100");
            check(!second.initialize(5L), "began twice");
        }

        @Override
        public void survived() throws Exception {
            List<Future<Integer>> adders = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                DistributedAtomicLong counter = i % 2 == 0 ? first : second;
                adders.add(Main.async(() -> {
                    int done = 0;
                    for (int n = 0; n < 10; n++) {
                        AtomicValue<Long> value = counter.increment();
                        done += value.succeeded() ? 1 : 0;
                    }
                    return done;
                }));
            }
            long done = 0;
            for (Future<Integer> adder : adders) {
                done += adder.get(2 * SOON, TimeUnit.SECONDS);
            }
            seenBy(reader, path);
            check(done == 40, "only " + done + " of 40 increments succeeded");
            check(second.get().postValue() == 140, "counted to " + second.get().postValue());
        }

        @Override
        public void lost() throws Exception {
            survived();
        }
    }

    private static final class Persistent implements Recipe {
        private PersistentNode node;
        private CuratorFramework reader;
        private CuratorFramework owner;
        private String path;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            survived();
            node.setData("new".getBytes());
            Main.await("the new data", SOON, () -> data("new"));
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            this.path = path;
            reader = b;
            owner = a;
            node = new PersistentNode(a, CreateMode.EPHEMERAL, false, path, "here".getBytes());
            node.start();
            check(node.waitForInitialCreate(SOON, TimeUnit.SECONDS), "it was not made");
            seenBy(b, path);
            check(own(), "it is not its session's");
        }

        private boolean own() throws Exception {
            Stat stat = reader.checkExists().forPath(path);
            return stat != null && stat.getEphemeralOwner() == owner.getZookeeperClient().getZooKeeper().getSessionId();
        }

        private boolean data(String expected) throws Exception {
            return reader.checkExists().forPath(path) != null && new String(reader.getData().forPath(path)).equals(expected);
        }

        @Override
        public void survived() throws Exception {
            seenBy(reader, path);
            check(own(), "it is gone, or another session's");
            long old = reader.checkExists().forPath(path).getCzxid();
            reader.delete().forPath(path);
            Main.await("a node that was deleted to be made again", SOON, () -> {
                Stat stat = reader.checkExists().forPath(path);
                return stat != null && stat.getCzxid() > old && own() && data("here");
            });
        }

        @Override
        public void lost() throws Exception {
            Main.await("a node of the new session", SOON, () -> own() && data("here"));
        }

        @Override
        public void close() throws Exception {
            node.close();
        }
    }

    private static final class Cache implements Recipe {
        private CuratorCache cache;
        private CuratorFramework writer;
        private String path;
        private final BlockingQueue<String> events = new LinkedBlockingQueue<>();

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            b.setData().forPath(path + "/x", "2".getBytes());
            check(next().equals("NODE_CHANGED " + path + "/x"), "no word of a change");
            b.create().forPath(path + "/x/deep", "3".getBytes());
            check(next().equals("NODE_CREATED " + path + "/x/deep"), "no word of a grandchild");
            b.delete().deletingChildrenIfNeeded().forPath(path + "/x");
            check(next().equals("NODE_DELETED " + path + "/x/deep"), "no word of a grandchild's end");
            check(next().equals("NODE_DELETED " + path + "/x"), "no word of a child's end");
            check(cache.size() == 1 && cache.get(path).isPresent(), "the cache keeps what is gone");
        }

        private String next() throws Exception {
            return String.valueOf(events.poll(SOON, TimeUnit.SECONDS));
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            this.path = path;
            writer = b;
            b.create().creatingParentsIfNeeded().forPath(path, "root".getBytes());
            b.create().forPath(path + "/x", "1".getBytes());
            seenBy(a, path);
            cache = CuratorCache.build(a, path);
            CountDownLatch initialized = new CountDownLatch(1);
            cache.listenable().addListener(CuratorCacheListener.builder().forInitialized(initialized::countDown).build());
            cache.start();
            check(initialized.await(SOON, TimeUnit.SECONDS), "the cache did not fill");
            check(cache.size() == 2 && holds("/x", "1"), "the cache holds something else");
            cache.listenable().addListener((type, old, now) ->
                    events.add(type + " " + (now != null ? now : old).getPath()));
        }

        private boolean holds(String name, String value) {
            return cache.get(path + name).map(data -> new String(data.getData()).equals(value)).orElse(false);
        }

        @Override
        public void survived() throws Exception {
            writer.setData().forPath(path + "/x", "4".getBytes());
            writer.create().forPath(path + "/y", "5".getBytes());
            Main.await("the cache to follow", SOON, () -> holds("/x", "4") && holds("/y", "5"));
            writer.delete().forPath(path + "/x");
            Main.await("the cache to follow a deletion", SOON, () -> cache.get(path + "/x").isEmpty());
        }

        @Override
        public void lost() throws Exception {
            survived();
        }

        @Override
        public void close() {
            cache.close();
        }
    }

    private static final QueueSerializer<String> TEXT = new QueueSerializer<>() {
        @Override
        public byte[] serialize(String item) {
            return item.getBytes();
        }

        @Override
        public String deserialize(byte[] bytes) {
            return new String(bytes);
        }
    };

    private static final class Consumer implements QueueConsumer<String> {
        final BlockingQueue<String> items = new LinkedBlockingQueue<>();

        @Override
        public void consumeMessage(String message) {
            items.add(message);
        }

        @Override
        public void stateChanged(CuratorFramework client, ConnectionState state) {}

        List<String> take(int count) throws Exception {
            List<String> taken = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                taken.add(items.poll(SOON, TimeUnit.SECONDS));
            }
            return taken;
        }
    }

    /** A queue puts in the background. What was put is there when this returns, also for the other client. */
    private static void flush(QueueBase<String> queue, CuratorFramework other, String path) throws Exception {
        check(queue.flushPuts(SOON, TimeUnit.SECONDS), "what was put is not there");
        seenBy(other, path);
    }

    private static final class Queue implements Recipe {
        private final Consumer consumer = new Consumer();
        private DistributedQueue<String> writer;
        private DistributedQueue<String> reader;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            survived();
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            writer = QueueBuilder.builder(b, null, TEXT, path).buildQueue();
            // With a lock, an item whose consumer dies is not lost.
            reader = QueueBuilder.builder(a, consumer, TEXT, path).lockPath(path + "-locks").buildQueue();
            writer.start();
            reader.start();
            writer.put("one");
            check(consumer.take(1).equals(List.of("one")), "the item did not come");
        }

        @Override
        public void survived() throws Exception {
            for (int i = 0; i < 10; i++) {
                writer.put("item " + i);
            }
            List<String> taken = consumer.take(10);
            for (int i = 0; i < 10; i++) {
                check(("item " + i).equals(taken.get(i)), "not in order: " + taken);
            }
        }

        @Override
        public void lost() throws Exception {
            survived();
        }

        @Override
        public void close() throws Exception {
            reader.close();
            writer.close();
        }
    }

    private static final class PriorityQueue implements Recipe {
        private final Consumer consumer = new Consumer();
        private DistributedPriorityQueue<String> writer;
        private DistributedPriorityQueue<String> reader;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            survived();
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            writer = QueueBuilder.builder(b, null, TEXT, path).buildPriorityQueue(1);
            reader = QueueBuilder.builder(a, consumer, TEXT, path).buildPriorityQueue(1);
            writer.start();
            writer.put("late", 30);
            writer.put("soon", -5);
            writer.put("middle", 4);
            flush(writer, a, path);
        }

        @Override
        public void survived() throws Exception {
            reader.start();
            List<String> taken = consumer.take(3);
            check(taken.equals(List.of("soon", "middle", "late")), "not by priority: " + taken);
        }

        @Override
        public void lost() throws Exception {
            survived();
        }

        @Override
        public void close() throws Exception {
            reader.close();
            writer.close();
        }
    }

    private static final class DelayQueue implements Recipe {
        private final Consumer consumer = new Consumer();
        private DistributedDelayQueue<String> writer;
        private DistributedDelayQueue<String> reader;
        private CuratorFramework a;
        private String path;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            survived();
        }

        /**
         * The reader is left waiting for an item that is due in a day. It has none in hand meanwhile: Curator's reader
         * deletes an item before it hands it on, and drops it if the connection breaks between the two.
         */
        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            this.a = a;
            this.path = path;
            writer = QueueBuilder.builder(b, null, TEXT, path).buildDelayQueue();
            reader = QueueBuilder.builder(a, consumer, TEXT, path).buildDelayQueue();
            writer.start();
            long now = System.currentTimeMillis();
            writer.put("tomorrow", now + TimeUnit.DAYS.toMillis(1));
            long due = now + 500;
            writer.put("later", due);
            writer.put("now", now);
            flush(writer, a, path);
            // Its first listing has them all, however long the puts took: the order is by their times alone.
            reader.start();
            List<String> taken = consumer.take(2);
            check(taken.equals(List.of("now", "later")), "not by their time: " + taken);
            check(System.currentTimeMillis() >= due, "came before its time");
        }

        @Override
        public void survived() throws Exception {
            // The reader hears of new items, still knows the old one, and keeps to their times.
            long due = System.currentTimeMillis() + 500;
            writer.put("later", due);
            check(consumer.take(1).equals(List.of("later")), "the item did not come");
            check(System.currentTimeMillis() >= due, "came before its time");
            Main.await("tomorrow's item alone to be left", SOON, () -> {
                seenBy(a, path);
                return a.getChildren().forPath(path).size() == 1;
            });
            check(consumer.items.isEmpty(), "came before its time: " + consumer.items);
        }

        @Override
        public void lost() throws Exception {
            survived();
        }

        @Override
        public void close() throws Exception {
            reader.close();
            writer.close();
        }
    }

    private static final class IdQueue implements Recipe {
        private final Consumer consumer = new Consumer();
        private DistributedIdQueue<String> writer;
        private DistributedIdQueue<String> reader;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            survived();
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            writer = QueueBuilder.builder(b, null, TEXT, path).buildIdQueue();
            reader = QueueBuilder.builder(a, consumer, TEXT, path).buildIdQueue();
            writer.start();
            writer.put("one", "id-1");
            writer.put("two", "id-2");
            writer.put("three", "id-3");
            flush(writer, a, path);
        }

        @Override
        public void survived() throws Exception {
            check(writer.remove("id-2") == 1, "the item was not there to remove");
            check(writer.remove("id-9") == 0, "an item that was never there was removed");
            reader.start();
            List<String> taken = consumer.take(2);
            check(taken.equals(List.of("one", "three")), "came: " + taken);
        }

        @Override
        public void lost() throws Exception {
            survived();
        }

        @Override
        public void close() throws Exception {
            reader.close();
            writer.close();
        }
    }

    private static final class SimpleQueue implements Recipe {
        private SimpleDistributedQueue first;
        private SimpleDistributedQueue second;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            survived();
            check(first.poll(200, TimeUnit.MILLISECONDS) == null, "something from an empty queue");
            Future<byte[]> taker = Main.async(() -> first.poll(SOON, TimeUnit.SECONDS));
            second.offer("woken".getBytes());
            check(new String(taker.get(SOON, TimeUnit.SECONDS)).equals("woken"), "the taker was not woken");
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            first = new SimpleDistributedQueue(a, path);
            second = new SimpleDistributedQueue(b, path);
            check(first.offer("one".getBytes()) && first.offer("two".getBytes()), "could not offer");
            seenBy(b, path);
        }

        @Override
        public void survived() throws Exception {
            check(new String(second.peek()).equals("one"), "another head");
            check(new String(second.take()).equals("one"), "not in order");
            check(new String(first.take()).equals("two"), "not in order");
        }

        @Override
        public void lost() throws Exception {
            survived();
        }
    }

    private static final class Group implements Recipe {
        private GroupMember first;
        private GroupMember second;

        @Override
        public void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            begin(a, b, path);
            check(new String(second.getCurrentMembers().get("a")).equals("A"), "another payload");
            survived();
        }

        @Override
        public void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception {
            first = new GroupMember(a, path, "a", "A".getBytes());
            second = new GroupMember(b, path, "b", "B".getBytes());
            first.start();
            second.start();
            Main.await("both in the group", SOON, this::both);
        }

        private boolean both() {
            return first.getCurrentMembers().size() == 2 && second.getCurrentMembers().size() == 2;
        }

        @Override
        public void survived() throws Exception {
            Main.await("both in the group", SOON, this::both);
            first.setThisData("AA".getBytes());
            Main.await("the new payload", SOON, () -> {
                byte[] payload = second.getCurrentMembers().get("a");
                return payload != null && new String(payload).equals("AA");
            });
            first.close();
            Main.await("a alone to be gone", SOON, () -> second.getCurrentMembers().keySet().equals(java.util.Set.of("b")));
        }

        @Override
        public void lost() throws Exception {
            Main.await("a to be a member again", SOON, this::both);
        }

        @Override
        public void close() {
            second.close();
            try {
                first.close();
            } catch (IllegalStateException e) {
                // It has left already.
            }
        }
    }

    private Recipes() {}
}
