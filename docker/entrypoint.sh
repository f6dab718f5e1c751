#!/bin/bash
# What a container of the image runs: `executor` is how Spark asks for one, `operator` is the operator, anything else is
# run as it is.
set -euo pipefail

# A user that the cluster assigned has no name, which Hadoop asks for.
if ! id --user --name >/dev/null 2>&1; then
    printf 'levada:x:%s:%s::%s:/usr/sbin/nologin\n' "$(id --user)" "$(id --group)" "$HOME" >/tmp/passwd
    export LD_PRELOAD=libnss_wrapper.so NSS_WRAPPER_PASSWD=/tmp/passwd NSS_WRAPPER_GROUP=/etc/group
fi

case "${1:-}" in
executor)
    # SPARK_CLASSPATH is what the driver's spark.executor.extraClassPath says: the image's other jars.
    spark=$(python -c 'from levada.local.jars import pyspark_folder; print(pyspark_folder())')
    options=()
    while IFS='=' read -r _ value; do options+=("$value"); done < <(env | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n)
    exec "$JAVA_HOME/bin/java" "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$spark/jars/*" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
operator)
    exec python -m levada_operator
    ;;
*)
    exec "$@"
    ;;
esac
