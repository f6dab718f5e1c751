#!/bin/bash
# The first process of the node's own pid, net, mount, uts and ipc namespaces. What it starts is started again if it ends,
# and goes with it; its network, mounts and packet rules go with the namespaces.
# Environment: STATE, LOGS, KEYS, PROGRAMS, NODE, NODE_NAME, SERVICES, PODS.
set -uo pipefail
export PATH=$PROGRAMS:$PATH

mount --make-rshared /
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/kernel
hostname "$NODE_NAME"

# The kubelet writes settings of the whole machine: it gets copies.
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  [ -e "/proc/sys/$setting" ] || continue
  copy=/run/kernel/${setting//\//_}
  cp "/proc/sys/$setting" "$copy"
  mount --bind "$copy" "/proc/sys/$setting"
done

echo 'nameserver 127.0.0.1' > /run/resolv.conf # no names from outside
ip link set lo up
until ip link show node-host > /dev/null 2>&1; do sleep 0.02; done
ip address add "$NODE/30" dev node-host
ip link set node-host up
ip route add unreachable default metric 4278198272 # nothing leaves the machine from here
echo 1 > /proc/sys/net/ipv4/ip_forward
[ -e /proc/sys/net/bridge/bridge-nf-call-iptables ] && echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables

# keep NAME COMMAND...: run it, and again whenever it ends; /run/NAME.pid has its process id
keep() {
  local name=$1
  shift
  while :; do
    "$@" >> "$LOGS/$name.log" 2>&1 &
    echo $! > "/run/$name.pid"
    wait $!
    sleep 0.5
  done &
}

keep etcd etcd --data-dir /run/etcd --log-level warn --snapshot-count 10000
keep apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --advertise-address="$NODE" \
  --tls-cert-file="$KEYS/apiserver.crt" --tls-private-key-file="$KEYS/apiserver.key" --client-ca-file="$KEYS/ca.crt" \
  --service-account-key-file="$KEYS/accounts.pub" --service-account-signing-key-file="$KEYS/accounts.key" \
  --service-account-issuer=https://kubernetes.default.svc.cluster.local \
  --service-cluster-ip-range="$SERVICES" --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement \
  --allow-privileged=true --audit-policy-file="$STATE/audit-policy.json" --audit-log-path="$LOGS/audit.log" \
  --kubelet-client-certificate="$KEYS/apiserver-kubelet.crt" --kubelet-client-key="$KEYS/apiserver-kubelet.key" \
  --kubelet-certificate-authority="$KEYS/ca.crt" --kubelet-preferred-address-types=InternalIP
keep containerd containerd --config "$STATE/containerd.toml"
until kubectl --kubeconfig "$STATE/admin.kubeconfig" get --raw=/readyz > /dev/null 2>&1; do sleep 0.2; done
keep controllers kube-controller-manager --kubeconfig="$STATE/controllers.kubeconfig" --leader-elect=false \
  --service-account-private-key-file="$KEYS/accounts.key" --root-ca-file="$KEYS/ca.crt" \
  --use-service-account-credentials=true \
  --cluster-signing-cert-file="$KEYS/ca.crt" --cluster-signing-key-file="$KEYS/ca.key"
keep scheduler kube-scheduler --kubeconfig="$STATE/scheduler.kubeconfig" --leader-elect=false
keep kubelet kubelet --config "$STATE/kubelet.json" --kubeconfig="$STATE/kubelet.kubeconfig" \
  --hostname-override="$NODE_NAME" --node-ip="$NODE" --root-dir="$STATE/kubelet" --cert-dir="$STATE/kubelet-keys"
keep proxy kube-proxy --kubeconfig="$STATE/proxy.kubeconfig" --hostname-override="$NODE_NAME" --proxy-mode=iptables \
  --cluster-cidr="$PODS" --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 \
  --conntrack-tcp-timeout-close-wait=0
keep names names --kubeconfig "$STATE/admin.kubeconfig" --address "$NODE:53"

while :; do
  wait -n 2> /dev/null # for what lost its parent
  sleep 0.2
done
