#!/usr/bin/env bash
# Run a program in two processes that a slow network connects.
#
#   benchmarks/slow_network.sh RATE COMMAND...
#
# Each process has a network namespace of its own, with one end of a cable (veth) that carries RATE
# in each direction, such as 1gbit: `tc` keeps to it with a token bucket, which adds no latency.
# MPICH goes by TCP, also where both are on one machine.  This takes root.
set -euo pipefail
rate=$1
shift
one=mg$$a two=mg$$b
trap 'ip netns del $one; ip netns del $two' EXIT
ip netns add $one
ip netns add $two
ip link add cable netns $one type veth peer name cable netns $two
address=1
for each in $one $two; do
  ip -n $each address add 10.77.0.$((address++))/24 dev cable
  ip -n $each link set lo up
  ip -n $each link set cable up
  tc -n $each qdisc add dev cable root tbf rate $rate burst 128kb latency 50ms
done
for each in $one $two; do
  until [[ $(ip -n $each link show cable) == *"state UP"* ]]; do sleep 0.1; done
done
export MPIR_CVAR_NOLOCAL=1 MPIR_CVAR_CH4_NETMOD=ucx UCX_TLS=tcp,self UCX_NET_DEVICES=cable
mpiexec -n 1 ip netns exec $one "$@" : -n 1 ip netns exec $two "$@"
