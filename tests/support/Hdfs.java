import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

/** A NameNode and a DataNode on free ports of the loopback, with all they keep below a directory, until stdin closes. */
public class Hdfs {
    public static void main(String[] args) throws Exception {
        Path root = Path.of(args[0]);
        Configuration conf = new Configuration();
        conf.set("fs.defaultFS", "hdfs://127.0.0.1:0");
        conf.set("dfs.namenode.http-address", "127.0.0.1:0");
        conf.set("dfs.namenode.name.dir", root.resolve("name").toUri().toString());
        conf.set("dfs.datanode.data.dir", root.resolve("data").toUri().toString());
        conf.set("dfs.datanode.hostname", "127.0.0.1");
        for (String of : new String[] {"address", "http.address", "ipc.address"}) {
            conf.set("dfs.datanode." + of, "127.0.0.1:0");
        }
        conf.setInt("dfs.replication", 1);
        DefaultMetricsSystem.setMiniClusterMode(true); // both in one process
        NameNode.format(conf);
        NameNode names = NameNode.createNameNode(new String[0], conf);
        String url = "hdfs://127.0.0.1:" + names.getNameNodeAddress().getPort();
        conf.set("fs.defaultFS", url);
        DataNode.createDataNode(new String[0], conf);
        try (FileSystem files = FileSystem.get(conf)) {
            while (((DistributedFileSystem) files).getDataNodeStats().length == 0) {
                Thread.sleep(50);
            }
        }
        System.out.println(url);
        while (System.in.read() >= 0) {}
        System.exit(0);
    }
}
