#!/usr/bin/env bash
# From nothing to rows in a lake, on Kubernetes: quickstart.sh [kind | k3d | minikube | current] [--keep]
#
# The first three make a cluster of that name and remove it again; without an argument, the first one that is installed.
# `current` uses the cluster of kubectl's current context, whose nodes have or can pull $IMAGE. --keep leaves all.
set -euo pipefail
cd "$(dirname "$0")/../.."

NAME=levada-quickstart
IMAGE=${IMAGE:-levada:quickstart}
TOOL="" KEEP=""
for word in "$@"; do
    case $word in
    kind | k3d | minikube | current) TOOL=$word ;;
    --keep) KEEP=yes ;;
    *) sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
if [ -z "$TOOL" ]; then
    for word in kind k3d minikube; do
        if command -v "$word" >/dev/null; then TOOL=$word; break; fi
    done
fi
[ -n "$TOOL" ] || { echo "install kind, k3d or minikube, or use: $0 current" >&2; exit 2; }
case $TOOL in
kind) context=kind-$NAME ;;
k3d) context=k3d-$NAME ;;
minikube) context=$NAME ;;
current) context=$(kubectl config current-context) ;;
esac
kubectl=(kubectl --context "$context" --namespace "$NAME")
helm=(helm --kube-context "$context" --namespace levada-system)
operator=""

step() { printf '\n# %s\n' "$*"; }

make_cluster() {
    [ "$TOOL" != current ] || return 0
    step "A cluster, by $TOOL"
    case $TOOL in
    kind) kind create cluster --name "$NAME" ;;
    k3d) k3d cluster create "$NAME" ;;
    minikube) minikube start --profile "$NAME" --memory 5g ;;
    esac
}

load_image() {
    [ "$TOOL" != current ] || return 0
    step "The image, built here and loaded without a registry"
    make image IMAGE="$IMAGE"
    case $TOOL in
    kind) kind load docker-image "$IMAGE" --name "$NAME" ;;
    k3d) k3d image import "$IMAGE" --cluster "$NAME" ;;
    minikube) minikube image load "$IMAGE" --profile "$NAME" ;;
    esac
}

install_operator() {
    if "${helm[@]}" status levada >/dev/null 2>&1; then return 0; fi
    step "The operator, by its chart"
    operator=installed
    "${helm[@]}" install levada charts/levada --create-namespace --wait \
        --set "image.repository=${IMAGE%:*}" --set "image.tag=${IMAGE##*:}"
}

replicate() {
    step "A database and an object store"
    kubectl --context "$context" create namespace "$NAME"
    "${kubectl[@]}" apply -f examples/quickstart/services.yaml
    "${kubectl[@]}" wait --for=condition=Available deployment/database deployment/objects --timeout=300s

    step "The pipeline"
    "${kubectl[@]}" apply -f examples/quickstart/pipeline.yaml
    "${kubectl[@]}" wait --for=condition=Ready pipeline/shop --timeout=600s
    "${kubectl[@]}" get pipelines,tablesyncs

    step "A change at the source"
    "${kubectl[@]}" exec deployment/database -- psql --username postgres shop --command \
        "UPDATE orders SET amount = amount + 1 WHERE customer = 7"

    step "Source and lake, compared"
    "${kubectl[@]}" exec shop-driver-0 --container driver -- levada verify

    step "Rows of the lake, by PyIceberg"
    "${kubectl[@]}" exec --stdin shop-driver-0 --container driver -- python - <examples/quickstart/read.py
}

remove() {
    local code=$?
    trap - EXIT
    if [ "$code" != 0 ]; then
        "${kubectl[@]}" get pods,pipelines,tablesyncs >&2 || true
        "${kubectl[@]}" describe pipeline shop >&2 || true
    fi
    if [ -n "$KEEP" ]; then
        step "All of it stays: kubectl --context $context --namespace $NAME get pipelines"
        exit "$code"
    fi
    step "Clean up"
    case $TOOL in
    kind) kind delete cluster --name "$NAME" ;;
    k3d) k3d cluster delete "$NAME" ;;
    minikube) minikube delete --profile "$NAME" ;;
    current)
        "${kubectl[@]}" delete pipeline shop --ignore-not-found --timeout=180s || true
        kubectl --context "$context" delete namespace "$NAME" --ignore-not-found --timeout=180s || true
        [ -z "$operator" ] || "${helm[@]}" uninstall levada --wait
        ;;
    esac
    exit "$code"
}

trap remove EXIT
make_cluster
load_image
install_operator
replicate
