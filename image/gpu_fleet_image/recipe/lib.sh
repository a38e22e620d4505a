# shellcheck shell=bash
# Functions of the steps: the log, the package map, the locked versions and their checks.

# a function that fails inside $( ) ends the step too
shopt -s inherit_errexit
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
# ROOT: a folder that replaces this instance's root; BOOTSTRAP: the first boot of an image that gpu-fleet did not bake
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

# queue_role: role of this instance in its stack's queue, controller or node; empty without a queue.
queue_role() {
    sed -n 's/^ *"role": "\([a-z]*\)".*/\1/p' "$ROOT/etc/gpu-fleet/queue.json" 2>/dev/null || true
}

# packages_of GROUP: the packages of a group on this base, one a line.
packages_of() {
    awk -v group="$1" '$1 == group { print $2 }' "$PAYLOAD/packages/$BASE.tsv"
}

# locked ARTEFACT FIELD: a field of versions.toml; ends the step if there is none.
locked() {
    local value
    value=$(field "$1" "$2")
    [ -n "$value" ] || fail "versions.toml: $1.$BASE.$2 is missing"
    printf '%s' "$value"
}

# field ARTEFACT FIELD: the locked value, or nothing if there is none.
field() {
    awk -F '\t' -v name="$1" -v field="$2" '$1 == name && $2 == field { print $3 }' "$PAYLOAD/versions/$BASE.tsv"
}

# outside ARTEFACT: the path of a maker's file, fetched if FILES lacks it. Its maker's signature or published hash is
# checked; a different file ends the step.
outside() {
    local url file
    url=$(locked "$1" url)
    file=$FILES/${url##*/}
    fetch "$url" "$file"
    case $(locked "$1" kind) in
        signed) check_signature "$1" "$url" "$file" ;;
        *) check_hash "$1" "$file" ;;
    esac
    printf '%s' "$file"
}

fetch() {
    [ ! -f "$2" ] || return 0
    mkdir -p "$FILES"
    curl --fail --silent --show-error --location --retry 3 --output "$2.part" "$1" || fail "$1 cannot be fetched"
    mv "$2.part" "$2"
}

check_signature() {
    local key keyring
    key=$(locked "$1" key_url)
    key=$FILES/${key##*/} keyring=$(mktemp)
    fetch "$2.sig" "$3.sig"
    fetch "$(locked "$1" key_url)" "$key"
    check_key "$1" "$key"
    gpg --quiet --batch --yes --dearmor --output "$keyring" "$key"
    gpgv --quiet --keyring "$keyring" "$3.sig" "$3" 2>/dev/null ||
        fail "$3: not signed by $1's key $(locked "$1" key_fingerprint)"
    rm -f "$keyring"
}

check_hash() {
    local expected found
    expected=$(locked "$1" sha256)
    found=$(sha256sum "$2" | cut -d' ' -f1)
    [ "$found" = "$expected" ] || fail "$2: sha256 is $found, versions.toml has $expected"
}

# check_key ARTEFACT FILE: check that a file has the locked key, and no other.
check_key() {
    local found fingerprint
    fingerprint=$(locked "$1" key_fingerprint)
    # of every key in the file, since apt would trust each; subkeys belong to theirs
    found=$(gpg --show-keys --with-colons "$2" 2>/dev/null |
        awk -F: '$1 == "pub" { own = 1 } own && $1 == "fpr" { print $10; own = 0 }' | paste -sd' ' || true)
    [ "$found" = "$fingerprint" ] || fail "$2: fingerprint is ${found:-none}, versions.toml has $fingerprint"
}

# While an image is made, apt knows only the locked archives; 90-seal restores the base's own.
ARCHIVES=/etc/apt/gpu-fleet
ARCHIVES_ONLY=/etc/apt/apt.conf.d/60-gpu-fleet-archives
ARCHIVE_DAY=/usr/share/gpu-fleet/archive-day

# archive ARTEFACT: add an archive with its key only; its signed lists have the hash of every package.
archive() {
    local uri components said
    uri=$(locked "$1" uri)
    [[ $uri != *"{day}"* ]] || uri=${uri/"{day}"/"$(archive_day)"}
    components=$(field "$1" components)
    check_key "$1" "$PAYLOAD/keys/$1.asc"
    command install -D -m 0644 "$PAYLOAD/keys/$1.asc" "/etc/apt/keyrings/$1.asc"
    mkdir -p "$ARCHIVES"
    printf 'Dir::Etc::SourceList "/dev/null";\nDir::Etc::SourceParts "%s";\n' "$ARCHIVES" >"$ARCHIVES_ONLY"
    # a day in the past is no attack
    printf '%s\n' "Types: deb" "URIs: $uri" "Suites: $(locked "$1" suites)" ${components:+"Components: $components"} \
        "Architectures: amd64" "Check-Valid-Until: no" "Signed-By: /etc/apt/keyrings/$1.asc" >"$ARCHIVES/$1.sources"
    said=$(apt-get update --quiet -o APT::Update::Error-Mode=any 2>&1) ||
        fail "archive $1: $(grep -m 1 '^[EW]:' <<<"$said" || echo "$said")"
}

# archive_day: the day of the distribution's archive: the locked one, or the base image's own if that is later, since
# its kernel has no modules in an older archive. It is the same for every step of a build.
archive_day() {
    local day serial now
    if [ ! -s "$ARCHIVE_DAY" ]; then
        day=$(locked ubuntu-archive day)
        serial=$(sed -n 's/^serial: *\([0-9]\{8\}\).*/\1T235959Z/p' /etc/cloud/build.info 2>/dev/null || true)
        now=$(date --utc +%Y%m%dT%H%M%SZ)
        [[ ! $serial > $day ]] || day=$serial
        [[ ! $day > $now ]] || day=$now
        mkdir -p "${ARCHIVE_DAY%/*}"
        printf '%s\n' "$day" >"$ARCHIVE_DAY"
    fi
    cat "$ARCHIVE_DAY"
}

# install PACKAGE...: without recommended extras; unsafe-io, because an unfinished image is discarded.
install() {
    [ $# -gt 0 ] || return 0
    if [ -n "$BOOTSTRAP" ]; then
        install_missing "$@"
        return
    fi
    apt-get install --quiet --yes --no-install-recommends \
        -o Dpkg::Options::=--force-unsafe-io -o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=300 "$@"
}

# install_missing PACKAGE...: at a first boot, install only what the base lacks; fail soon without internet access.
install_missing() {
    local name missing=() patience=(-o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15)
    for name in "$@"; do
        dpkg-query --show --showformat '${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    # apt-get update ends with 0 if no archive answers, unless an option makes that an error
    apt-get update --quiet "${patience[@]}" -o APT::Update::Error-Mode=any ||
        fail "no access to the package archives; missing on this base: ${missing[*]}"
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

# version_of ARTEFACT: the newest version in the archive that matches the lock; a series, say 580.*, is a pattern.
version_of() {
    local name wanted version offered=()
    name=$(packages_of "$1" | head -n 1)
    wanted=$(locked "$1" version)
    mapfile -t offered < <(apt-cache madison "$name" | awk -F ' *[|] *' '{ print $2 }')
    for version in "${offered[@]}"; do
        # shellcheck disable=SC2053
        if [[ $version == $wanted ]]; then
            printf '%s' "$version"
            return
        fi
    done
    fail "versions.toml: $1.$BASE.version = '$wanted': the archive has $name ${offered[*]:-in no version}"
}

# install_locked ARTEFACT: install the packages of its group at the locked version, and hold them.
install_locked() {
    local names version
    mapfile -t names < <(packages_of "$1")
    version=$(version_of "$1")
    install "${names[@]/%/=$version}"
    apt-mark hold "${names[@]}" >/dev/null
}

# lay PATH...: copy files of rootfs/ to their place on the instance, programs executable, all owned by root.
lay() {
    local path owner=(--owner=root --group=root)
    [ -z "$ROOT" ] || owner=()
    for path in "$@"; do
        (cd "$PAYLOAD/rootfs" && find "./$path" -type f -print0) | while IFS= read -r -d '' file; do
            local mode=0644
            case $file in
                ./usr/libexec/* | */bin/*) mode=0755 ;;
                ./etc/sudoers.d/*) mode=0440 ;;
            esac
            command install -D "${owner[@]}" --mode="$mode" "$PAYLOAD/rootfs/$file" "$ROOT/${file#./}"
        done
    done
}

# serve UNIT...: enable units for every boot, and start them at a first boot without waiting. In a folder only the links
# of their targets are made, as systemctl would.
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
