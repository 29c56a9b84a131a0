# Second stage, process 1 of the guest, in the host's userland: makes the RDMA devices, then runs the command.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
control=/run/rig
. $control/conf
# Fixed neighbours: what follows a peer's death is then up to verbs alone.
for ((rail = 0; rail < RAILS; rail++)); do
  for ((node = 0; node < NNODES; node++)); do
    [ $node = "$NODE" ] && continue
    mac=$(printf '52:54:00:77:%02x:%02x' $rail $((node + 1)))
    echo "neigh replace 10.77.$rail.$((node + 1)) lladdr $mac nud permanent dev eth$rail"
    printf 'neigh replace fe80::5054:ff:fe77:%x lladdr %s nud permanent dev eth%d\n' $((rail * 256 + node + 1)) "$mac" \
      $rail
  done
done >/run/neighbours
ip -batch /run/neighbours
for ((rail = 0; rail < RAILS; rail++)); do
  # A cable's being there is noticed a little later; until then the interface does not count as running.
  for ((i = 0; i < 100; i++)); do
    [ "$(cat "/sys/class/net/eth$rail/operstate")" = up ] && break
    sleep 0.05
  done
  rdma link add "rxe$rail" type rxe netdev "eth$rail" || echo b >/proc/sysrq-trigger
done
cat >/usr/local/bin/node-die <<'DIE'
#!/bin/bash
# Cuts the power of this machine at once; its exit status counts as $1, by default 0.
echo "${1:-0}" >/run/rig/status
sync
echo b >/proc/sysrq-trigger
DIE
chmod 755 /usr/local/bin/node-die
ulimit -l unlimited
ulimit -n 65536
ulimit -c 0

mkfifo /run/output
cat </run/output >$control/output & # one writer: a file over 9p cannot be appended to by several
relay=$!
: >$control/ready
until [ -e $control/go ]; do sleep 0.05; done
bash -c '. /run/rig/env; cd "$1" || exit 125; exec bash -c "$2"' - "$FOLDER" "$COMMAND" </dev/null >/run/output 2>&1
status=$?
# Until all is relayed; a process left behind may still hold the pipe.
for ((idle = 0; idle < 10; idle++)); do
  kill -0 $relay 2>/dev/null || break
  sleep 0.1
  case $(cat /proc/$relay/wchan) in *pipe_read) ;; *) idle=0 ;; esac
done
sync
echo $status >$control/status.new
mv $control/status.new $control/status
while :; do sleep 3600; done # the devices stay for the peers until the host ends the machine
