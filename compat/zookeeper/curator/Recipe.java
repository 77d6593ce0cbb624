import org.apache.curator.framework.CuratorFramework;

/**
 * One recipe of Curator. {@link #plain} shows what it promises in quiet; {@link #begin} leaves it in use by
 * client `a`, so that something can happen to the servers or to a's session; {@link #survived} and {@link #lost}
 * then say what must hold. `b` is another client; `path` is the recipe's own, not there yet.
 */
interface Recipe extends AutoCloseable {
    void plain(CuratorFramework a, CuratorFramework b, String path) throws Exception;

    void begin(CuratorFramework a, CuratorFramework b, String path) throws Exception;

    /** The servers went and came back; the session of `a` did not end. */
    void survived() throws Exception;

    /** The session of `a` was ended; `a` itself has another one by now. */
    void lost() throws Exception;

    @Override
    default void close() throws Exception {}
}
