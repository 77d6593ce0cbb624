import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.net.BindException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Collectors;

/** One or three servers of ZK_SERVER_CMD (its contract: ../lib.sh), started and ended by this program. */
final class Cluster implements AutoCloseable {
    private static final class Node {
        int id;
        int port;
        Path dir;
        Process process;
    }

    private final List<Node> nodes = new ArrayList<>();
    private final String peers;

    Cluster(int size) throws Exception {
        StringBuilder lines = new StringBuilder();
        List<Integer> ports = freePorts(3 * size);
        for (int i = 0; i < size; i++) {
            Node node = new Node();
            node.id = i + 1;
            node.port = ports.get(3 * i);
            node.dir = Files.createTempDirectory(Path.of(System.getenv("COMPAT_WORK")), "curator-");
            nodes.add(node);
            if (size > 1) {
                lines.append("server." + node.id + "=127.0.0.1:" + ports.get(3 * i + 1) + ":" + ports.get(3 * i + 2) + "\n");
            }
        }
        peers = lines.toString();
        for (Node node : nodes) {
            start(node);
        }
        for (Node node : nodes) {
            awaitServing(node);
        }
    }

    int size() {
        return nodes.size();
    }

    String connectString() {
        return nodes.stream().map(n -> "127.0.0.1:" + n.port).collect(Collectors.joining(","));
    }

    /** Ends one server, -9 or in good order, starts it again, and waits until it serves. */
    void restart(int index, boolean kill) throws Exception {
        Node node = nodes.get(index);
        stop(node, kill);
        start(node);
        awaitServing(node);
    }

    /** Kills the leader, waits until another one leads, starts it again and waits until it serves. */
    void replaceLeader() throws Exception {
        Main.await("a leader", 120, () -> leader() != null);
        Node old = leader();
        stop(old, true);
        Main.await("another leader", 120, () -> {
            Node now = leader();
            return now != null && now != old;
        });
        start(old);
        awaitServing(old);
    }

    private Node leader() {
        for (Node node : nodes) {
            if (srvr(node).contains("Mode: leader")) {
                return node;
            }
        }
        return null;
    }

    private void start(Node node) throws IOException {
        ProcessBuilder builder = new ProcessBuilder("sh", "-c", "exec " + System.getenv("ZK_SERVER_CMD"));
        Map<String, String> env = builder.environment();
        env.put("SRV_PORT", "" + node.port);
        env.put("SRV_DIR", node.dir.toString());
        env.put("SRV_ID", "" + node.id);
        env.put("SRV_PEERS", peers);
        env.put("SRV_TICK", "2000");
        env.put("SRV_CFG", "");
        env.put("SRV_JVM", "-Dzookeeper.extendedTypesEnabled=true -Dznode.container.checkIntervalMs=1000");
        File log = node.dir.resolve("log").toFile();
        builder.redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.appendTo(log));
        node.process = builder.start();
    }

    private static void stop(Node node, boolean kill) throws Exception {
        if (kill) {
            node.process.destroyForcibly();
        } else {
            node.process.destroy();
        }
        node.process.waitFor();
    }

    private static void awaitServing(Node node) throws Exception {
        Main.await("server " + node.id + " to serve", 120, () -> {
            if (!node.process.isAlive()) {
                throw new IllegalStateException("server " + node.id + " ended: see " + node.dir.resolve("log"));
            }
            return srvr(node).contains("Mode:") || hasSession(node);
        });
    }

    private static String srvr(Node node) {
        try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), node.port)) {
            socket.setSoTimeout(2000);
            socket.getOutputStream().write("srvr".getBytes(StandardCharsets.US_ASCII));
            InputStream in = socket.getInputStream();
            return new String(in.readAllBytes(), StandardCharsets.US_ASCII);
        } catch (IOException e) {
            return "";
        }
    }

    /** For servers that do not answer srvr. */
    private static boolean hasSession(Node node) {
        try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), node.port)) {
            socket.setSoTimeout(5000);
            ByteBuffer request = ByteBuffer.allocate(48);
            request.putInt(44).putInt(0).putLong(0).putInt(4000).putLong(0).putInt(16);
            socket.getOutputStream().write(request.array());
            byte[] answer = socket.getInputStream().readNBytes(20);
            return answer.length == 20 && ByteBuffer.wrap(answer).getLong(12) != 0;
        } catch (IOException e) {
            return false;
        }
    }

    /**
     * Ports that nobody has, and that the system gives to no connection before the servers have them: below those
     * that Linux takes for outgoing ones.
     */
    private static List<Integer> freePorts(int count) throws IOException {
        List<ServerSocket> held = new ArrayList<>();
        List<Integer> ports = new ArrayList<>();
        while (ports.size() < count) {
            int port = ThreadLocalRandom.current().nextInt(15_000, 32_000);
            try {
                held.add(new ServerSocket(port, 1, InetAddress.getLoopbackAddress()));
                ports.add(port);
            } catch (BindException taken) {
                // The next one.
            }
        }
        for (ServerSocket socket : held) {
            socket.close();
        }
        return ports;
    }

    @Override
    public void close() throws Exception {
        for (Node node : nodes) {
            stop(node, false);
        }
    }
}
