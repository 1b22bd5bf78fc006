#!/usr/bin/env bash
#
# The fault that durable-args is for, and the cure, side by side. make demo
# builds what this script runs, and calls it.
#
# Each side is a machine of its own: mount, network and PID namespaces, which
# the kernel takes down with the last process in them, and a temporary
# directory. Exit status 1 means that the fault did not show, or that the cure
# did not hold.
set -euo pipefail

self=$(realpath "${BASH_SOURCE[0]}")
bin=${self%/test/demo/*}/bin
PATH=$PATH:/usr/sbin:/sbin # where su leaves them out

# What the runtime says on ADD, and no longer on DEL.
cni_args='IgnoreUnknown=1;K8S_POD_NAME=web-0'
cap_args='{"portMappings": [
  {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}'

# A pool of one address: the next pod gets it at once, not after hundreds.
conflist() {
	cat <<-'END'
		{
		  "cniVersion": "1.0.0",
		  "name": "web",
		  "plugins": [
		    { "type": "durable-args", "capabilities": { "portMappings": true } },
		    { "type": "bridge", "bridge": "web0", "isGateway": true,
		      "ipam": { "type": "host-local", "subnet": "10.88.0.0/30" } },
		    { "type": "portmap", "capabilities": { "portMappings": true } }
		  ]
		}
	END
}

# ---- one side, in its namespaces: does what the story tells, notes facts ----

side() { # DIRECTORY
	dir=$1
	mount --bind "$bin" "$dir/bin"
	mount -t tmpfs tmpfs /run
	mount --bind "$dir/lib" /var/lib
	ip link set lo up
	export CNI_PATH=$dir/bin:$dir/bin/cni NETCONFPATH=$dir/net.d
	PATH=$dir/bin/cni:$PATH
	unset CNI_ARGS CAP_ARGS CNI_IFNAME CNI_CONTAINERID

	start web-0 "CNI_ARGS=$cni_args" "CAP_ARGS=$cap_args"
	note journaled "$(plural "$(journal | wc -l)" file)"

	local cache
	cache=$(compgen -G '/var/lib/cni/results/*')
	note cache "$cache"
	note before "$(stat -c %s "$cache") bytes"
	: >"$cache"
	note after "$(stat -c %s "$cache") bytes"

	if cnitool del web /run/netns/web-0; then
		note del 'success'
	else
		note del 'failure'
	fi
	note rule "$(iptables-save -t nat | sed -n 's/.*--dport \([0-9]*\) -j DNAT --to-destination \(.*\)/\1 -> \2/p')"
	note chain "$(iptables-save -t nat | sed -n 's/^:\(CNI-DN-[^ ]*\).*/\1/p')"
	note address "$(find /var/lib/cni/networks/web -name '10.*' -printf '%f')"
	note link "$(ip -o link show type veth | sed 's/^[0-9]*: \([^@:]*\).*/\1/')"
	note journal "$(journal)"

	ip netns del web-0
	start web-1
}

# start adds a pod to the network, and notes where that leads.
start() { # POD VARIABLE=VALUE...
	local pod=$1
	ip netns add "$pod"
	env "${@:2}" cnitool add web "/run/netns/$pod" >"$dir/result"
	note "$pod.ip" "$(sed -n 's/.*"address": "\([^"/]*\).*/\1/p' "$dir/result")"
	if arrives "$pod"; then
		note "$pod.port" "reaches $pod"
	else
		note "$pod.port" 'reaches nobody'
	fi
}

# arrives calls the host's port 8080 and looks whether that gets to the pod.
# Nobody listens there: what counts is the packet.
arrives() { # POD
	ip netns exec "$1" iptables -A INPUT -p tcp --dport 80
	timeout 3 bash -c '</dev/tcp/10.88.0.1/8080' 2>/dev/null || true
	ip netns exec "$1" iptables-save -c | grep -q '^\[[1-9].*--dport 80'
}

journal() {
	find /var/lib/durable-args -type f -name '*@*' -printf '%P\n' 2>/dev/null || true
}

plural() { # NUMBER NOUN
	case $1 in
	0) ;;
	1) echo "1 $2" ;;
	*) echo "$1 $2s" ;;
	esac
}

note() { # NAME VALUE
	printf '%s\t%s\n' "$1" "${2//$'\n'/, }" >>"$dir/facts"
}

# ---- the machine ------------------------------------------------------------

fail() {
	printf 'demo: %s\n' "$@" >&2
	exit 1
}

require() {
	if ((EUID != 0)); then
		fail 'This needs root, to make network namespaces of its own.' \
			'Nothing outside of them changes. As root, run: make demo'
	fi
	if [[ ! -x $bin/durable-args || ! -x $bin/cni/cnitool ]]; then
		fail 'What it runs is not built yet. Run: make demo'
	fi
	local missing=()
	command -v iptables-save >/dev/null || missing+=(iptables)
	command -v ip >/dev/null || missing+=(iproute2)
	if ((${#missing[@]})); then
		install_packages "${missing[@]}"
	fi
	unshare --mount --net --pid --fork true ||
		fail 'The kernel does not let root make namespaces here.' \
			'In a container, start that with --privileged.'
}

install_packages() { # PACKAGE...
	command -v apt-get >/dev/null ||
		fail "Please install $* (iproute2 may be called iproute), then run this again."
	echo "Installing $* with apt-get ..."
	{
		apt-get -q update &&
			DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"
	} >"$tmp/apt" 2>&1 || {
		cat "$tmp/apt" >&2
		fail "Installing $* failed; please install them, then run this again."
	}
}

# clean leaves nothing behind, however this ends. The first process of a
# namespace dies with its unshare, and takes all others along.
clean() {
	trap '' INT TERM HUP
	local pids
	pids=$(jobs -p)
	disown -a # bash need not tell of their end
	# shellcheck disable=SC2086 # one argument each
	[[ -z $pids ]] || kill -KILL $pids 2>/dev/null || true
	# They may have a last word to write.
	for _ in {1..20}; do
		rm -rf "$tmp" 2>/dev/null && return
		sleep 0.1
	done
	rm -rf "$tmp"
}

# ---- the story --------------------------------------------------------------

bold='' dim='' red='' green='' plain=''
if [[ -t 1 && -z ${NO_COLOR+set} && ${TERM:-dumb} != dumb ]]; then
	bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' plain=$'\e[0m'
fi

step() { # TEXT [COMMAND]
	printf '%s%s%s\n' "$bold" "$1" "$plain"
	(($# == 1)) || printf '%s   $ %s%s\n' "$dim" "${2//$'\n'/$'\n     '}" "$plain"
}

row() { # LABEL FACT [FINE]: the fact on either side; in colour where FINE says what it should be
	local label=$1 fact=$2 a b
	a=${without[$fact]:-none} b=${with[$fact]:-none}
	printf '   %-17s%s%-30s%s%s%s%s\n' "$label" \
		"$(colour "$a" "${@:3}")" "$a" "$plain" "$(colour "$b" "${@:3}")" "$b" "$plain"
}

colour() { # VALUE [FINE]
	(($# == 2)) || return 0
	if [[ $1 == "$2" ]]; then printf %s "$green"; else printf %s "$red"; fi
}

introduce() {
	printf '%s\n\n%s\n\n' "${bold}durable-args: the end of a pod after a power cut$plain" \
		'The same network twice. On the right, one stanza more in its conflist:'
	while IFS= read -r line; do
		if [[ $line == *durable-args* ]]; then
			printf ' %s+ %s%s\n' "$green$bold" "$line" "$plain"
		else
			printf '   %s\n' "$line"
		fi
	done < <(conflist)
	printf '\n%s\n%s\n' 'Each side runs on a machine of its own, made of namespaces; this one stays as' \
		'it is. The pool has a single address, so that the next pod gets it at once.'
}

tell() {
	printf '\n%s%-20s%-30s%s%s\n' "$bold" '' 'WITHOUT' 'WITH durable-args' "$plain"
	printf '%s%-20s%s  %s%s\n' "$dim" '' '----------------------------' '----------------------------' "$plain"

	step '1. A pod starts, and publishes port 8080' "CNI_ARGS='$cni_args' \\
CAP_ARGS='$cap_args' \\
cnitool add web /run/netns/web-0"
	row 'IP' web-0.ip
	row 'port 8080' web-0.port
	row 'journaled' journaled
	echo

	step '2. The power is cut, and libcni had not synced its cache' ": > ${without[cache]}"
	row 'cache before' before
	row 'cache after' after
	echo

	step '3. The pod ends, and the runtime no longer knows what it said on ADD' 'cnitool del web /run/netns/web-0'
	row 'DEL says' del success
	echo

	step '4. What is left on the host'
	row 'DNAT rule' rule none
	row 'its chain' chain none
	row 'IP reservation' address none
	row 'veth link' link none
	row 'journal file' journal none
	echo

	step '5. The next pod starts, and publishes nothing' 'cnitool add web /run/netns/web-1'
	row 'IP' web-1.ip
	row 'port 8080' web-1.port 'reaches nobody'
	echo
}

# judge says what this has shown, and fails unless it has shown both.
judge() {
	local fact problems=()
	if [[ ${without[web-0.port]} != 'reaches web-0' || ${with[web-0.port]} != 'reaches web-0' ]]; then
		problems+=('Port 8080 never worked, so there was nothing to clean up.')
	fi
	if [[ -z ${without[rule]} || ${without[web-1.port]} != 'reaches web-1' ]]; then
		problems+=('The fault did not show: without durable-args, no rule leads to the next pod.')
	fi
	for fact in rule chain address link journal; do
		if [[ -n ${with[$fact]} ]]; then
			problems+=("The cure did not hold: with durable-args, this is left: ${with[$fact]}")
		fi
	done
	if [[ ${with[journaled]} != '1 file' ]]; then
		problems+=('The cure did not hold: ADD was not journaled.')
	fi
	if [[ ${with[del]} != success || ${with[web-1.port]} != 'reaches nobody' ]]; then
		problems+=('The cure did not hold: DEL failed, or port 8080 still leads to a pod.')
	fi
	if ((${#problems[@]})); then
		printf "$red%s$plain\\n" "${problems[@]}"
		return 1
	fi
	cat <<-END
		${bold}Without${plain}  a DNAT rule stays, pointing at an IP that the next pod gets: whoever
		         calls port 8080 of the host ${red}reaches a pod that never published it${plain}.
		${bold}With${plain}     the arguments were on disk before any other plugin ran; DEL was
		         replayed with them, and ${green}nothing is left${plain}.
	END
}

read_facts() { # FILE ARRAY
	local -n facts=$2
	local name value
	while IFS=$'\t' read -r name value; do
		# shellcheck disable=SC2034,SC2004 # another name for the array, and a key
		facts[$name]=$value
	done <"$1"
}

main() {
	# Not /tmp, which may be in memory: the journal belongs on a disk.
	tmp=$(mktemp -d /var/tmp/durable-args-demo.XXXXXX)
	trap clean EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	trap 'exit 129' HUP
	require
	introduce

	mkdir -p "$tmp"/{without,with}/{bin,lib,net.d}
	conflist >"$tmp/with/net.d/web.conflist"
	conflist | grep -v durable-args >"$tmp/without/net.d/web.conflist"

	local name pid pids=()
	for name in without with; do
		unshare --mount --net --pid --fork --kill-child --mount-proc \
			"$self" --side "$tmp/$name" >"$tmp/$name/log" 2>&1 &
		pids+=($!)
	done
	for pid in "${pids[@]}"; do
		wait "$pid" || {
			cat "$tmp"/*/log >&2
			fail 'A step failed; its words are above.'
		}
	done

	declare -A without with
	read_facts "$tmp/without/facts" without
	read_facts "$tmp/with/facts" with
	tell
	judge
}

if [[ ${1-} == --side ]]; then
	side "$2"
else
	main
fi
