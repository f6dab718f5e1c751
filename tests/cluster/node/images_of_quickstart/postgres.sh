#!/bin/bash
# What the quickstart uses of docker.io/library/postgres, which this cluster cannot pull: the same variables and folders.
set -eu
export PGDATA=/var/lib/postgresql/18/docker
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username postgres --encoding UTF8 --pwfile <(printf %s "$POSTGRES_PASSWORD") --auth-host scram-sha-256 --auth-local trust
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl start --wait --options "-c listen_addresses='' -c unix_socket_directories=/tmp"
    psql --host /tmp --username postgres --command "CREATE DATABASE $POSTGRES_DB"
    for file in /docker-entrypoint-initdb.d/*.sql; do
        psql --host /tmp --username postgres --dbname "$POSTGRES_DB" --set ON_ERROR_STOP=1 --file "$file"
    done
    pg_ctl stop --wait
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
