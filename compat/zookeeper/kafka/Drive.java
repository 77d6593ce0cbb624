import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Two Kafka brokers in ZooKeeper mode on a cluster (first argument: HOST:PORT,…): a topic is made and written,
 * the broker that is the controller is killed, the other one takes over, the killed one comes back; everything
 * is still there, and both are in sync again. The further arguments are the brokers' ports.
 */
public final class Drive {
    private static int step;
    private static Path work;
    private static String zookeeper;
    private static int[] ports;
    private static final Process[] brokers = new Process[2];

    interface Condition {
        boolean holds() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        zookeeper = args[0];
        ports = new int[] {Integer.parseInt(args[1]), Integer.parseInt(args[2])};
        work = Path.of(args[3]);
        int code = 1;
        try {
            drive();
            code = 0;
        } catch (Throwable e) {
            System.out.println("FAILED after step " + step + ": " + e);
        } finally {
            for (Process broker : brokers) {
                if (broker != null) {
                    broker.destroyForcibly().waitFor();
                }
            }
        }
        System.out.println("PASSED " + step + " FAILED " + code + " SKIPPED 0");
        System.exit(code);
    }

    private static void drive() throws Exception {
        start(0);
        start(1);
        String servers = "127.0.0.1:" + ports[0] + ",127.0.0.1:" + ports[1];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers, "request.timeout.ms", "10000"))) {
            await("two brokers", () -> admin.describeCluster().nodes().get().size() == 2);
            done("two brokers are registered");
            admin.createTopics(List.of(new NewTopic("routes", 3, (short) 2))).all().get(60, TimeUnit.SECONDS);
            await("a topic with two replicas in sync", () -> inSync(admin, 2));
            done("a topic is made");
            produce(servers, 0, 100);
            done("and written");

            int controller = admin.describeCluster().controller().get().id();
            brokers[controller].destroyForcibly().waitFor();
            await("another controller", () -> admin.describeCluster().controller().get().id() == 1 - controller
                    && admin.describeCluster().nodes().get().size() == 1);
            done("the other broker is the controller now");
            produce(servers, 100, 200);
            done("and takes writes");
            admin.createTopics(List.of(new NewTopic("later", 1, (short) 1))).all().get(60, TimeUnit.SECONDS);
            done("and makes topics");

            start(controller);
            await("both brokers in sync", () -> inSync(admin, 2));
            done("the killed broker is back and in sync");
            Set<String> seen = consume(servers, 200);
            if (seen.size() != 200) {
                throw new AssertionError(seen.size() + " of 200 records are there");
            }
            done("nothing is lost");
            admin.deleteTopics(List.of("later")).all().get(60, TimeUnit.SECONDS);
            await("the topic's end", () -> !admin.listTopics().names().get().contains("later"));
            done("a topic is deleted");
            for (int i = 0; i < 2; i++) {
                brokers[i].destroy();
                if (!brokers[i].waitFor(90, TimeUnit.SECONDS)) {
                    throw new AssertionError("broker " + i + " does not stop");
                }
            }
            done("both brokers stop in good order");
        }
    }

    private static boolean inSync(Admin admin, int count) throws Exception {
        Map<String, TopicDescription> topics = admin.describeTopics(List.of("routes")).allTopicNames().get();
        return topics.get("routes").partitions().stream().allMatch(p -> p.isr().size() == count && p.leader() != null);
    }

    private static void produce(String servers, int from, int to) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
                Map.of("bootstrap.servers", servers, "acks", "all", "delivery.timeout.ms", "90000",
                        "request.timeout.ms", "10000"),
                new StringSerializer(), new StringSerializer())) {
            for (int i = from; i < to; i++) {
                producer.send(new ProducerRecord<>("routes", "" + i, "record " + i)).get(90, TimeUnit.SECONDS);
            }
        }
    }

    private static Set<String> consume(String servers, int count) {
        Set<String> seen = new HashSet<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
                Map.of("bootstrap.servers", servers, "group.id", "compat", "auto.offset.reset", "earliest"),
                new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("routes"));
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(120);
            while (seen.size() < count && System.nanoTime() < end) {
                consumer.poll(Duration.ofSeconds(1)).forEach(record -> seen.add(record.key()));
            }
        }
        return seen;
    }

    private static void start(int id) throws Exception {
        Path config = work.resolve("broker-" + id + ".properties");
        Files.writeString(config, String.join("\n",
                "broker.id=" + id,
                "zookeeper.connect=" + zookeeper + "/kafka",
                "listeners=PLAINTEXT://127.0.0.1:" + ports[id],
                "log.dirs=" + work.resolve("broker-" + id),
                "offsets.topic.num.partitions=3",
                "offsets.topic.replication.factor=2",
                "transaction.state.log.replication.factor=1",
                "group.initial.rebalance.delay.ms=0",
                "controlled.shutdown.max.retries=1",
                "zookeeper.session.timeout.ms=6000"));
        File log = work.resolve("broker-" + id + ".log").toFile();
        brokers[id] = new ProcessBuilder("java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-cp", System.getProperty("java.class.path"),
                "kafka.Kafka", config.toString())
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(log))
                .start();
    }

    private static void await(String what, Condition condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(150);
        Optional<Exception> last = Optional.empty();
        while (true) {
            try {
                if (condition.holds()) {
                    return;
                }
            } catch (Exception e) {
                last = Optional.of(e);
            }
            if (System.nanoTime() > end) {
                throw new AssertionError("waited for " + what + last.map(e -> ": " + e).orElse(""));
            }
            Thread.sleep(200);
        }
    }

    private static void done(String what) {
        step++;
        System.out.println("ok      " + what);
    }
}
