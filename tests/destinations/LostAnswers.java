package levada;

import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.exceptions.CommitStateUnknownException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;

/** The operations of a table whose catalog does not answer a commit. */
public class LostAnswers implements TableOperations {
  private final TableOperations operations;
  private final boolean happens;

  public LostAnswers(TableOperations operations, boolean happens) {
    this.operations = operations;
    this.happens = happens;
  }

  public void commit(TableMetadata base, TableMetadata changed) {
    if (happens) {
      operations.commit(base, changed);
    }
    throw new CommitStateUnknownException(new RuntimeException("no answer"));
  }

  public TableMetadata current() {
    return operations.current();
  }

  public TableMetadata refresh() {
    return operations.refresh();
  }

  public FileIO io() {
    return operations.io();
  }

  public String metadataFileLocation(String name) {
    return operations.metadataFileLocation(name);
  }

  public LocationProvider locationProvider() {
    return operations.locationProvider();
  }
}
