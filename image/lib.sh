# shellcheck shell=bash
# What the steps share: the log, the package map, the locked versions.

export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
# ROOT: a folder instead of this instance's root; BOOTSTRAP: this is the first boot of an image that is not ours
export ROOT=${ROOT:-} BOOTSTRAP=${BOOTSTRAP:-}
# shellcheck source=/dev/null
BASE=$(. /etc/os-release && printf '%s-%s' "$ID" "$VERSION_ID")

log() {
    printf '%s\n' "$*"
}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# packages_of GROUP: the packages of a group on this base, one a line.
packages_of() {
    awk -v group="$1" '$1 == group { print $2 }' "$PAYLOAD/packages/$BASE.tsv"
}

# locked ARTEFACT FIELD: a field of versions.toml; ends the step when there is none or it is "unlocked".
locked() {
    local value
    value=$(awk -F '\t' -v name="$1" -v field="$2" '$1 == name && $2 == field { print $3 }' "$PAYLOAD/versions/$BASE.tsv")
    [ -n "$value" ] || fail "versions.toml: $1.$BASE.$2 is missing"
    [ "$value" != unlocked ] || fail "versions.toml: $1.$BASE.$2 = 'unlocked': lock it before baking $TARGET"
    printf '%s' "$value"
}

# fetched ARTEFACT: the path of an outside file, its hash checked; ends the step when it is another file.
fetched() {
    local name expected found
    name=$(locked "$1" file) expected=$(locked "$1" sha256)
    [ -f "$FILES/$name" ] || fail "$FILES/$name is missing: versions.toml names it for $1"
    found=$(sha256sum "$FILES/$name" | cut -d' ' -f1)
    [ "$found" = "$expected" ] || fail "$FILES/$name: sha256 is $found, versions.toml has $expected"
    printf '%s' "$FILES/$name"
}

# repository ARTEFACT: the archive of a maker, held by the key that is locked and by no other.
repository() {
    local uri fingerprint key found
    uri=$(locked "$1" uri)
    fingerprint=$(locked "$1" key_fingerprint)
    key=$FILES/$(locked "$1" file)
    [ -f "$key" ] || fail "$key is missing: versions.toml names it as the key of $1"
    # of every key in the file, since apt would trust each; subkeys hang on theirs
    found=$(gpg --show-keys --with-colons "$key" 2>/dev/null |
        awk -F: '$1 == "pub" { own = 1 } own && $1 == "fpr" { print $10; own = 0 }' | paste -sd' ' || true)
    [ "$found" = "$fingerprint" ] || fail "$key: fingerprint is ${found:-none}, versions.toml has $fingerprint"
    command install -D -m 0644 "$key" "/etc/apt/keyrings/$1.asc"
    printf 'deb [signed-by=/etc/apt/keyrings/%s.asc] %s\n' "$1" "$uri" >"/etc/apt/sources.list.d/$1.list"
    apt-get update --quiet
}

# install PACKAGE...: without recommended extras; unsafe-io because an unfinished image is thrown away.
install() {
    [ $# -gt 0 ] || return 0
    if [ -n "$BOOTSTRAP" ]; then
        install_missing "$@"
        return
    fi
    apt-get install --quiet --yes --no-install-recommends \
        -o Dpkg::Options::=--force-unsafe-io -o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=300 "$@"
}

# install_missing PACKAGE...: at a first boot, only what the base lacks; says soon that there is no way out.
install_missing() {
    local name missing=() patience=(-o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15)
    for name in "$@"; do
        dpkg-query --show --showformat '${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    # apt-get update ends with 0 where no archive answers, unless it is told that this is an error
    apt-get update --quiet "${patience[@]}" -o APT::Update::Error-Mode=any ||
        fail "no way to the package archives; missing on this base: ${missing[*]}"
    apt-get install --quiet --yes --no-install-recommends "${patience[@]}" \
        -o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=300 "${missing[@]}" ||
        fail "cannot install ${missing[*]}"
}

# install_group GROUP: the packages of a group on this base.
install_group() {
    local names
    mapfile -t names < <(packages_of "$1")
    install "${names[@]}"
}

# install_locked GROUP ARTEFACT: the packages of a group at the locked version, and hold them there.
install_locked() {
    local names version offered
    mapfile -t names < <(packages_of "$1")
    version=$(locked "$2" version)
    offered=$(apt-cache madison "${names[0]}" | awk -F ' *[|] *' '{ print $2 }' | paste -sd' ')
    case " $offered " in
        *" $version "*) ;;
        *) fail "versions.toml: $2.$BASE.version = '$version': the archive has ${names[0]} ${offered:-in no version}" ;;
    esac
    install "${names[@]/%/=$version}"
    apt-mark hold "${names[@]}" >/dev/null
}

# lay PATH...: files of rootfs/ as they lie on the instance, programs executable, all owned by root.
lay() {
    local path owner=(--owner=root --group=root)
    [ -z "$ROOT" ] || owner=()
    for path in "$@"; do
        (cd "$PAYLOAD/rootfs" && find "./$path" -type f -print0) | while IFS= read -r -d '' file; do
            local mode=0644
            case $file in ./usr/libexec/* | */bin/*) mode=0755 ;; esac
            command install -D "${owner[@]}" --mode="$mode" "$PAYLOAD/rootfs/$file" "$ROOT/${file#./}"
        done
    done
}

# serve UNIT...: units that run at every boot, and at a first boot from now on, without waiting for them. In a folder
# only the links of their targets are made, as systemctl would.
serve() {
    local unit wants
    if [ -z "$ROOT" ]; then
        systemctl enable "$@"
        [ -z "$BOOTSTRAP" ] || systemctl start --no-block "$@"
        return
    fi
    for unit in "$@"; do
        wants=$ROOT/etc/systemd/system/$(sed -n 's/^WantedBy=//p' "$ROOT/etc/systemd/system/$unit").wants
        mkdir -p "$wants"
        ln -sfn "../$unit" "$wants/$unit"
    done
}
