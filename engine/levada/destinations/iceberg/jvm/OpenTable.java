package levada;

import java.io.IOException;
import java.io.StringWriter;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.function.Function;
import java.util.function.Predicate;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.ContentFileParser;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileContent;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.ManifestReader;
import org.apache.iceberg.ManifestWriter;
import org.apache.iceberg.MetricsConfig;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.PartitionSpecParser;
import org.apache.iceberg.RewriteFiles;
import org.apache.iceberg.RewriteManifests;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotParser;
import org.apache.iceberg.SnapshotRef;
import org.apache.iceberg.SnapshotRefParser;
import org.apache.iceberg.SnapshotUpdate;
import org.apache.iceberg.SortOrderParser;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.CommitStateUnknownException;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.relocated.com.google.common.util.concurrent.MoreExecutors;
import org.apache.iceberg.shaded.com.fasterxml.jackson.core.JsonGenerator;
import org.apache.iceberg.shaded.com.fasterxml.jackson.core.JsonParser;
import org.apache.iceberg.shaded.com.fasterxml.jackson.core.JsonToken;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.iceberg.spark.ScanTaskSetManager;
import org.apache.iceberg.util.JsonUtil;

/**
 * A table with one call for each step of Python: to read what has changed, and to commit.
 *
 * Requests and results are JSON. Each call gets the location of the metadata that Python has, and returns what has
 * changed since, or all of the metadata. A commit is a compare-and-set on that metadata.
 */
public class OpenTable {
  /** The most files of a commit that needs no other threads. */
  private static final int SMALL = 100;

  private final Table table;
  private final TableOperations operations;
  /** Runs tasks in the thread that submits them. */
  private final ExecutorService own = MoreExecutors.newDirectExecutorService();
  /** The metadata that was returned last. */
  private TableMetadata returned;

  public OpenTable(Table table, TableOperations operations) {
    this.table = table;
    this.operations = operations;
  }

  /** Opens tables. It has a constructor without arguments, which Python can call. */
  public static class Opener {
    public OpenTable open(Table table, TableOperations operations) {
      return new OpenTable(table, operations);
    }
  }

  /** Returns the metadata that is known, without reading it again. */
  public String read(String location) throws IOException {
    return changes(operations.current(), location, null, false);
  }

  /** Reads the newest metadata. Returns null if Python has it. */
  public String refresh(String location) throws IOException {
    TableMetadata now = operations.refresh();
    return Objects.equals(now.metadataFileLocation(), location) ? null : changes(now, location, null, false);
  }

  /** Replaces the metadata in one commit. Another commit since `base` is an error. */
  public String replace(TableMetadata base, TableMetadata changed, String location) throws IOException {
    operations.commit(base, changed);
    return changes(operations.current(), location, null, false);
  }

  /** Sets properties in one commit, and removes those whose value is null. */
  public String setProperties(String properties, String location) throws IOException {
    TableMetadata base = operations.current();
    TableMetadata.Builder builder = TableMetadata.buildFrom(base);
    return replace(base, withProperties(builder, JsonUtil.mapper().readTree(properties)).build(), location);
  }

  private static TableMetadata.Builder withProperties(TableMetadata.Builder builder, JsonNode properties) {
    Map set = new HashMap();
    Set removed = new HashSet();
    for (Iterator i = properties.fields(); i.hasNext();) {
      Map.Entry property = (Map.Entry) i.next();
      JsonNode value = (JsonNode) property.getValue();
      if (value.isNull()) {
        removed.add(property.getKey());
      } else {
        set.put(property.getKey(), value.textValue());
      }
    }
    builder = set.isEmpty() ? builder : builder.setProperties(set);
    return removed.isEmpty() ? builder : builder.removeProperties(removed);
  }

  /** Returns the folder of new data files, and the properties of the access to the table's files. */
  public String storage() throws IOException {
    Map found = new HashMap();
    found.put("folder", table.locationProvider().newDataLocation(""));
    found.put("properties", table.io().properties());
    return JsonUtil.mapper().writeValueAsString(found);
  }

  /** Returns the metrics mode of each column. */
  public String metricsModes(String columns) throws IOException {
    MetricsConfig config = MetricsConfig.forTable(table);
    List found = new ArrayList();
    for (Iterator i = JsonUtil.mapper().readTree(columns).elements(); i.hasNext();) {
      found.add(config.columnMode(((JsonNode) i.next()).textValue()).toString());
    }
    return JsonUtil.mapper().writeValueAsString(found);
  }

  /** Adds and removes files in one commit. If its result is unknown, the table is read to find out. */
  public String commit(String request, String location) throws IOException {
    Changed commit = changed(request, location);
    Long snapshot = Long.valueOf(commit.after.currentSnapshot().snapshotId());
    boolean unconfirmed = false;
    try {
      operations.commit(commit.before, commit.after);
    } catch (CommitStateUnknownException e) {
      if (!isInHistory(snapshot, operations.refresh())) {
        throw e;
      }
      unconfirmed = true;
    }
    return changes(operations.current(), location, snapshot, unconfirmed);
  }

  /** Returns the metadata after a commit as by `commit`, without the commit. Its manifests are written. */
  public TableMetadata uncommitted(String request, String location) throws IOException {
    return changed(request, location).after;
  }

  private static class Changed {
    final TableMetadata before;
    final TableMetadata after;

    Changed(TableMetadata before, TableMetadata after) {
      this.before = before;
      this.after = after;
    }
  }

  private Changed changed(String text, String location) throws IOException {
    Map files = new HashMap();
    JsonNode request = parse(text, files);
    Snapshot snapshot = apply(request, files, location);
    TableMetadata base = operations.current();
    if (!Objects.equals(base.metadataFileLocation(), location)) {
      Long parent = request.hasNonNull("parent") ? Long.valueOf(request.get("parent").longValue()) : null;
      // The files may not be valid in another format version.
      boolean upgraded = base.formatVersion() != request.get("format-version").intValue();
      // A newer driver may have recorded a later watermark without a snapshot.
      String known = request.hasNonNull("recorded") ? request.get("recorded").textValue() : null;
      boolean passed = !Objects.equals(base.properties().get(request.get("record-in").textValue()), known);
      if (upgraded || passed || !Objects.equals(snapshot.parentId(), parent)) {
        throw conflict(null);
      }
    }
    int schema = request.get("schema-id").intValue();
    TableMetadata described = base;
    if (request.hasNonNull("schema")) {
      described = arranged(base, request).updateSchema(SchemaParser.fromJson(request.get("schema").textValue()));
      schema = described.currentSchemaId();
      // It was written with the ID of the former columns.
      ObjectNode node = (ObjectNode) JsonUtil.mapper().readTree(SnapshotParser.toJson(snapshot));
      snapshot = SnapshotParser.fromJson(node.put("schema-id", schema).toString());
    }
    TableMetadata.Builder builder = TableMetadata.buildFrom(described).setBranchSnapshot(snapshot, "main");
    ObjectNode properties = (ObjectNode) request.get("properties");
    if (request.hasNonNull("record")) {
      // What Python does not know before the commit.
      ObjectNode record = (ObjectNode) request.get("record");
      record.put("snapshot", snapshot.snapshotId()).put("schema", schema);
      properties.put(request.get("record-in").textValue(), record.toString());
    }
    return new Changed(base, withProperties(builder, properties).build());
  }

  private static TableMetadata arranged(TableMetadata base, JsonNode request) {
    TableMetadata.Builder builder = TableMetadata.buildFrom(base);
    if (request.hasNonNull("spec")) {
      builder.setDefaultPartitionSpec(PartitionSpecParser.fromJson(base.schema(), request.get("spec").textValue()));
    }
    if (request.hasNonNull("order")) {
      builder.setDefaultSortOrder(SortOrderParser.fromJson(base.schema(), request.get("order").textValue()));
    }
    return builder.build();
  }

  /** Writes the manifests for the newest metadata once. The update's own commit would retry with newer metadata. */
  private Snapshot apply(JsonNode request, Map files, String location) throws IOException {
    try {
      SnapshotUpdate update = update(request, files);
      if (isSmall(request, files)) {
        // Iceberg waits for its own threads in steps of 10 ms, six or seven times in a commit.
        update.scanManifestsWith(own);
        update.writeManifestsWith(own, 1);
      }
      for (Iterator i = request.get("summary").fields(); i.hasNext();) {
        Map.Entry entry = (Map.Entry) i.next();
        update.set((String) entry.getKey(), ((JsonNode) entry.getValue()).textValue());
      }
      return (Snapshot) update.apply();
    } catch (RuntimeException e) {
      // The metadata that Python has may refer to manifests that another writer removed, and newer metadata may have
      // partitions that the update does not know.
      if (isOutdated(location)) {
        throw conflict(e);
      }
      throw e;
    }
  }

  /** Returns true if a commit writes a manifest or two, and reads none or few, as that of an ordinary batch does. */
  private boolean isSmall(JsonNode request, Map files) {
    String operation = request.get("operation").textValue();
    if (!operation.equals("append") && !operation.equals("delta")) {
      return false;
    }
    boolean removes = request.get("replacing").booleanValue() || request.hasNonNull("lost");
    int count = 0;
    for (Iterator i = files.values().iterator(); i.hasNext();) {
      count += ((List) i.next()).size();
    }
    return !removes && count <= SMALL;
  }

  private boolean isOutdated(String location) {
    try {
      return !Objects.equals(operations.refresh().metadataFileLocation(), location);
    } catch (RuntimeException e) {
      return false;
    }
  }

  private static CommitFailedException conflict(Throwable cause) {
    return new CommitFailedException(cause, "another writer changed the table", new Object[0]);
  }

  private SnapshotUpdate update(JsonNode request, Map files) throws IOException {
    List data = (List) files.get("data");
    List deletes = (List) files.get("deletes");
    List removed = (List) files.get("removed-deletes");
    String operation = request.get("operation").textValue();
    if (operation.equals("append")) {
      AppendFiles append = table.newAppend();
      for (Iterator i = data.iterator(); i.hasNext();) {
        append.appendFile((DataFile) i.next());
      }
      return append;
    }
    if (operation.equals("rewrite")) {
      return rewrite(data);
    }
    if (operation.equals("rewrite-manifests")) {
      return rewriteManifests(request.get("manifests"));
    }
    if (operation.equals("rewrite-deletes")) {
      RewriteFiles rewrite = table.newRewrite();
      for (Iterator i = removed.iterator(); i.hasNext();) {
        rewrite.deleteFile((DeleteFile) i.next());
      }
      for (Iterator i = deletes.iterator(); i.hasNext();) {
        rewrite.addFile((DeleteFile) i.next());
      }
      return rewrite;
    }
    RowDelta delta = table.newRowDelta();
    for (Iterator i = data.iterator(); i.hasNext();) {
      delta.addRows((DataFile) i.next());
    }
    for (Iterator i = deletes.iterator(); i.hasNext();) {
      delta.addDeletes((DeleteFile) i.next());
    }
    for (Iterator i = removed.iterator(); i.hasNext();) {
      delta.removeDeletes((DeleteFile) i.next());
    }
    if (request.hasNonNull("validate-from")) {
      // Otherwise a vector of any earlier snapshot counts as a conflict. A replaced vector that is missing is an
      // error, as its data file may get a second one.
      delta.validateFromSnapshot(request.get("validate-from").longValue());
      delta.validateDeletedFiles();
    }
    if (request.get("replacing").booleanValue()) {
      remove(delta, null);
    } else if (request.hasNonNull("lost")) {
      Set lost = new HashSet();
      for (Iterator i = request.get("lost").elements(); i.hasNext();) {
        lost.add(((JsonNode) i.next()).textValue());
      }
      remove(delta, lost);
    }
    return delta;
  }

  /**
   * Writes the entries of live files of some manifests to new manifests.
   *
   * Those of data files are written to one manifest for each partition spec. Iceberg rewrites no manifests of deletes.
   */
  private SnapshotUpdate rewriteManifests(JsonNode paths) throws IOException {
    final Set wanted = new HashSet();
    for (Iterator i = paths.elements(); i.hasNext();) {
      wanted.add(((JsonNode) i.next()).textValue());
    }
    RewriteManifests rewrite = table.rewriteManifests();
    rewrite.clusterBy(new Function() {
      public Object apply(Object file) {
        return "all";
      }
    });
    rewrite.rewriteIf(new Predicate() {
      public boolean test(Object manifest) {
        return wanted.contains(((ManifestFile) manifest).path());
      }
    });
    for (Iterator i = table.currentSnapshot().deleteManifests(table.io()).iterator(); i.hasNext();) {
      ManifestFile manifest = (ManifestFile) i.next();
      if (wanted.contains(manifest.path())) {
        rewrite.deleteManifest(manifest);
        List left = liveDeletes(manifest);
        if (!left.isEmpty()) {
          rewrite.addManifest(writtenAgain(manifest, left));
        }
      }
    }
    return rewrite;
  }

  private List liveDeletes(ManifestFile manifest) throws IOException {
    List found = new ArrayList();
    ManifestReader reader = ManifestFiles.readDeleteManifest(manifest, table.io(), table.specs());
    try {
      for (Iterator i = reader.iterator(); i.hasNext();) {
        found.add(((DeleteFile) i.next()).copy());
      }
    } finally {
      reader.close();
    }
    return found;
  }

  /** Writes a manifest of these delete files. Their sequence numbers, which decide on what they apply to, stay. */
  private ManifestFile writtenAgain(ManifestFile manifest, List files) throws IOException {
    PartitionSpec spec = (PartitionSpec) table.specs().get(Integer.valueOf(manifest.partitionSpecId()));
    OutputFile file = table.io().newOutputFile(operations.metadataFileLocation(UUID.randomUUID() + "-m0.avro"));
    ManifestWriter writer =
        ManifestFiles.writeDeleteManifest(operations.current().formatVersion(), spec, file, (Long) null);
    try {
      for (Iterator i = files.iterator(); i.hasNext();) {
        DeleteFile delete = (DeleteFile) i.next();
        writer.existing(
            delete,
            manifest.snapshotId().longValue(),
            delete.dataSequenceNumber().longValue(),
            delete.fileSequenceNumber());
      }
    } finally {
      writer.close();
    }
    return writer.toManifestFile();
  }

  /** Replaces all data and delete files by `data`, which has the same rows. */
  private SnapshotUpdate rewrite(List data) {
    RewriteFiles rewrite = table.newRewrite().validateFromSnapshot(table.currentSnapshot().snapshotId());
    Set deletes = new HashSet();
    for (Iterator i = tasks().iterator(); i.hasNext();) {
      FileScanTask task = (FileScanTask) i.next();
      rewrite.deleteFile((DataFile) task.file());
      for (Iterator j = task.deletes().iterator(); j.hasNext();) {
        DeleteFile delete = (DeleteFile) j.next();
        if (deletes.add(delete.location())) {
          rewrite.deleteFile(delete);
        }
      }
    }
    for (Iterator i = data.iterator(); i.hasNext();) {
      rewrite.addFile((DataFile) i.next());
    }
    return rewrite;
  }

  /**
   * Returns the delete files of the current snapshot, and its data files with the numbers of the deletes that may apply.
   *
   * Returns null if a file is not Parquet or Puffin, or if there are equality deletes.
   */
  public String plan() throws IOException {
    List tasks = tasks();
    Map specs = table.specs();
    Map numbers = new HashMap();
    StringWriter text = new StringWriter();
    JsonGenerator json = JsonUtil.factory().createGenerator(text);
    json.writeStartObject();
    json.writeArrayFieldStart("deletes");
    for (Iterator i = tasks.iterator(); i.hasNext();) {
      FileScanTask task = (FileScanTask) i.next();
      if (!format(task.file()).equals("PARQUET")) {
        return null;
      }
      for (Iterator j = task.deletes().iterator(); j.hasNext();) {
        DeleteFile delete = (DeleteFile) j.next();
        boolean known = format(delete).equals("PARQUET") || format(delete).equals("PUFFIN");
        if (!known || delete.content() != FileContent.POSITION_DELETES) {
          return null;
        }
        if (!numbers.containsKey(key(delete))) {
          numbers.put(key(delete), Integer.valueOf(numbers.size()));
          json.writeRawValue(ContentFileParser.toJson(delete, (PartitionSpec) specs.get(Integer.valueOf(delete.specId()))));
        }
      }
    }
    json.writeEndArray();
    json.writeObjectFieldStart("data");
    for (Iterator i = tasks.iterator(); i.hasNext();) {
      FileScanTask task = (FileScanTask) i.next();
      json.writeArrayFieldStart(((DataFile) task.file()).location());
      for (Iterator j = task.deletes().iterator(); j.hasNext();) {
        json.writeNumber(((Integer) numbers.get(key((DeleteFile) j.next()))).intValue());
      }
      json.writeEndArray();
    }
    json.writeEndObject();
    json.writeEndObject();
    json.close();
    return text.toString();
  }

  /**
   * Returns the paths of the data files whose rows may differ between two snapshots, as the lists "former" and "later".
   *
   * A file that both have with the same deletes has the same rows. With the sums of the files' bytes, and of all of them.
   */
  public String difference(long former, long later) throws IOException {
    Map before = byPath(tasksOf(table.newScan().useSnapshot(former)));
    Map after = byPath(tasksOf(table.newScan().useSnapshot(later)));
    StringWriter text = new StringWriter();
    JsonGenerator json = JsonUtil.factory().createGenerator(text);
    json.writeStartObject();
    json.writeNumberField("bytes", changed(json, "former", before, after) + changed(json, "later", after, before));
    long all = 0;
    for (Iterator i = after.values().iterator(); i.hasNext();) {
      all += ((FileScanTask) i.next()).file().fileSizeInBytes();
    }
    json.writeNumberField("all", all);
    json.writeEndObject();
    json.close();
    return text.toString();
  }

  /** Returns the paths of a snapshot's data files. */
  public String paths(long snapshot) throws IOException {
    return JsonUtil.mapper().writeValueAsString(byPath(tasksOf(table.newScan().useSnapshot(snapshot))).keySet());
  }

  /** Returns the location of each snapshot's list of manifests, by the snapshot's ID. */
  public String manifestLists() throws IOException {
    Map found = new HashMap();
    for (Iterator i = operations.current().snapshots().iterator(); i.hasNext();) {
      Snapshot snapshot = (Snapshot) i.next();
      found.put(String.valueOf(snapshot.snapshotId()), snapshot.manifestListLocation());
    }
    return JsonUtil.mapper().writeValueAsString(found);
  }

  private static Map byPath(List tasks) {
    Map found = new HashMap();
    for (Iterator i = tasks.iterator(); i.hasNext();) {
      FileScanTask task = (FileScanTask) i.next();
      found.put(((DataFile) task.file()).location(), task);
    }
    return found;
  }

  private static long changed(JsonGenerator json, String name, Map tasks, Map others) throws IOException {
    long bytes = 0;
    json.writeArrayFieldStart(name);
    for (Iterator i = tasks.entrySet().iterator(); i.hasNext();) {
      Map.Entry entry = (Map.Entry) i.next();
      FileScanTask task = (FileScanTask) entry.getValue();
      FileScanTask other = (FileScanTask) others.get(entry.getKey());
      if (other == null || !deletes(task).equals(deletes(other))) {
        json.writeString((String) entry.getKey());
        bytes += task.file().fileSizeInBytes();
      }
    }
    json.writeEndArray();
    return bytes;
  }

  private static Set deletes(FileScanTask task) {
    Set keys = new HashSet();
    for (Iterator i = task.deletes().iterator(); i.hasNext();) {
      keys.add(key((DeleteFile) i.next()));
    }
    return keys;
  }

  /** Lets Spark read the data files of a snapshot that `paths` has, as the set of tasks with this name. */
  public void stage(String name, long snapshot, String paths) throws IOException {
    Set wanted = new HashSet();
    for (Iterator i = JsonUtil.mapper().readTree(paths).elements(); i.hasNext();) {
      wanted.add(((JsonNode) i.next()).textValue());
    }
    Map tasks = byPath(tasksOf(table.newScan().useSnapshot(snapshot)));
    tasks.keySet().retainAll(wanted);
    ScanTaskSetManager.get().stageTasks(table, name, new ArrayList(tasks.values()));
  }

  /** Forgets a set of tasks. */
  public void unstage(String name) {
    ScanTaskSetManager.get().removeTasks(table, name);
  }

  private static String format(ContentFile file) {
    return file.format().toString();
  }

  /** One Puffin file has the vectors of several data files. */
  private static String key(DeleteFile delete) {
    return delete.location() + " " + delete.contentOffset();
  }

  /** Returns the whole files of the current snapshot, without splits. */
  private List tasks() {
    return tasksOf(table.newScan());
  }

  private static List tasksOf(TableScan scan) {
    CloseableIterable planned = scan.planFiles();
    List tasks = new ArrayList();
    try {
      for (Iterator i = planned.iterator(); i.hasNext();) {
        tasks.add(i.next());
      }
    } finally {
      try {
        planned.close();
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }
    return tasks;
  }

  /** Parses a request. Its lists of files are put into `files`, one by one, as a copy may have very many. */
  private JsonNode parse(String text, Map files) throws IOException {
    Map specs = table.specs();
    ObjectNode request = JsonUtil.mapper().createObjectNode();
    JsonParser json = JsonUtil.factory().createParser(text);
    json.nextToken();
    while (json.nextToken() == JsonToken.FIELD_NAME) {
      String name = json.getCurrentName();
      json.nextToken();
      if (name.equals("data") || name.equals("deletes") || name.equals("removed-deletes")) {
        List found = new ArrayList();
        while (json.nextToken() == JsonToken.START_OBJECT) {
          found.add(ContentFileParser.fromJson((JsonNode) JsonUtil.mapper().readTree(json), specs));
        }
        files.put(name, found);
      } else {
        request.set(name, (JsonNode) JsonUtil.mapper().readTree(json));
      }
    }
    json.close();
    return request;
  }

  /**
   * Removes all files, or those of the paths `lost`.
   *
   * A data file whose deletes are lost is removed too, because its deleted rows would return.
   */
  private void remove(RowDelta delta, Set lost) {
    for (Iterator i = tasks().iterator(); i.hasNext();) {
      FileScanTask task = (FileScanTask) i.next();
      boolean gone = lost == null || lost.contains(((DataFile) task.file()).location());
      for (Iterator j = task.deletes().iterator(); j.hasNext();) {
        DeleteFile delete = (DeleteFile) j.next();
        if (lost == null || lost.contains(delete.location())) {
          delta.removeDeletes(delete);
          gone = true;
        }
      }
      if (gone) {
        delta.removeRows((DataFile) task.file());
      }
    }
  }

  private static boolean isInHistory(Long snapshot, TableMetadata metadata) {
    Snapshot found = metadata.currentSnapshot();
    while (found != null && found.snapshotId() != snapshot.longValue()) {
      found = found.parentId() == null ? null : metadata.snapshot(found.parentId().longValue());
    }
    return found != null;
  }

  /** Returns what has changed since the metadata at `location`, or all of the metadata if that is not known. */
  private String changes(TableMetadata now, String location, Long snapshot, boolean unconfirmed) throws IOException {
    TableMetadata before = returned;
    boolean known = before != null && Objects.equals(before.metadataFileLocation(), location) && differsLittle(before, now);
    StringWriter text = new StringWriter();
    JsonGenerator json = JsonUtil.factory().createGenerator(text);
    json.writeStartObject();
    json.writeStringField("location", now.metadataFileLocation());
    if (snapshot != null) {
      json.writeNumberField("snapshot", snapshot.longValue());
      json.writeBooleanField("unconfirmed", unconfirmed);
    }
    if (known) {
      json.writeObjectFieldStart("changes");
      writeChanges(before, now, json);
      json.writeEndObject();
    } else {
      json.writeFieldName("metadata");
      json.writeRawValue(TableMetadataParser.toJson(now));
    }
    json.writeEndObject();
    json.close();
    returned = now;
    return text.toString();
  }

  /** Returns true if two versions of a table have the same columns, partitions, orders and place. IDs never change. */
  private static boolean differsLittle(TableMetadata before, TableMetadata now) {
    return Objects.equals(before.uuid(), now.uuid())
        && Objects.equals(before.location(), now.location())
        && before.formatVersion() == now.formatVersion()
        && before.lastColumnId() == now.lastColumnId()
        && before.lastAssignedPartitionId() == now.lastAssignedPartitionId()
        && before.currentSchemaId() == now.currentSchemaId()
        && before.defaultSpecId() == now.defaultSpecId()
        && before.defaultSortOrderId() == now.defaultSortOrderId()
        && before.schemasById().keySet().equals(now.schemasById().keySet())
        && before.specsById().keySet().equals(now.specsById().keySet())
        && before.sortOrdersById().keySet().equals(now.sortOrdersById().keySet());
  }

  private static void writeChanges(TableMetadata before, TableMetadata now, JsonGenerator json) throws IOException {
    Snapshot current = now.currentSnapshot();
    if (current != null) {
      json.writeNumberField("current-snapshot-id", current.snapshotId());
    }
    JsonUtil.writeStringMap("properties", now.properties(), json);
    json.writeArrayFieldStart("snapshots");
    for (Iterator i = now.snapshots().iterator(); i.hasNext();) {
      Snapshot snapshot = (Snapshot) i.next();
      if (before.snapshot(snapshot.snapshotId()) == null) {
        json.writeRawValue(SnapshotParser.toJson(snapshot));
      }
    }
    json.writeEndArray();
    json.writeArrayFieldStart("removed-snapshots");
    for (Iterator i = before.snapshots().iterator(); i.hasNext();) {
      Snapshot snapshot = (Snapshot) i.next();
      if (now.snapshot(snapshot.snapshotId()) == null) {
        json.writeNumber(snapshot.snapshotId());
      }
    }
    json.writeEndArray();
    json.writeObjectFieldStart("refs");
    for (Iterator i = now.refs().entrySet().iterator(); i.hasNext();) {
      Map.Entry ref = (Map.Entry) i.next();
      if (!ref.getValue().equals(before.ref((String) ref.getKey()))) {
        json.writeFieldName((String) ref.getKey());
        SnapshotRefParser.toJson((SnapshotRef) ref.getValue(), json);
      }
    }
    json.writeEndObject();
    json.writeArrayFieldStart("removed-refs");
    for (Iterator i = before.refs().keySet().iterator(); i.hasNext();) {
      String name = (String) i.next();
      if (now.ref(name) == null) {
        json.writeString(name);
      }
    }
    json.writeEndArray();
    json.writeArrayFieldStart("metadata-log");
    for (Iterator i = now.previousFiles().iterator(); i.hasNext();) {
      json.writeString(((TableMetadata.MetadataLogEntry) i.next()).file());
    }
    json.writeEndArray();
  }
}
