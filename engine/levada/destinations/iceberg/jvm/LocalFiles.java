package levada;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, which sets permissions by a system call and writes no checksum files.
 *
 * Hadoop starts a process, chmod, for each file that it creates, unless its native library is there.
 */
public class LocalFiles extends LocalFileSystem {
  public LocalFiles() {
    super(new WithoutProcesses());
    setWriteChecksum(false);
  }

  public static class WithoutProcesses extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
      if (permission.getStickyBit()) {
        super.setPermission(path, permission);
        return;
      }
      String symbols = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL
          + permission.getOtherAction().SYMBOL;
      java.nio.file.Path file;
      try {
        file = pathToFile(path).toPath();
      } catch (InvalidPathException e) {
        // The process has a locale in which the name cannot be encoded.
        super.setPermission(path, permission);
        return;
      }
      Files.setPosixFilePermissions(file, PosixFilePermissions.fromString(symbols));
    }
  }
}
