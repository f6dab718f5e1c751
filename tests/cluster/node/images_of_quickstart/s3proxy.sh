#!/bin/sh
# What the quickstart uses of docker.io/andrewgaul/s3proxy, which this cluster cannot pull: the same variables.
set -eu
exec java -Ds3proxy.endpoint="$S3PROXY_ENDPOINT" -Ds3proxy.authorization=aws-v2-or-v4 \
    -Ds3proxy.identity="$S3PROXY_IDENTITY" -Ds3proxy.credential="$S3PROXY_CREDENTIAL" \
    -Djclouds.provider="$JCLOUDS_PROVIDER" -Djclouds.filesystem.basedir="$JCLOUDS_FILESYSTEM_BASEDIR" \
    -cp "/opt/s3proxy/*" org.gaul.s3proxy.Main --properties /dev/null
