#!/bin/sh
# Makes an unpacked Debian root usable as an image. Called by mmdebstrap with the root as its argument, while the
# packages that it was unpacked from are still there. No maintainer script has run, so what those of the few
# packages in it would have done is done here.
set -eu
root=$1

# Scanners, and our bill of materials, read what is installed from here where there is no dpkg.
mkdir -p "$root/var/lib/dpkg/status.d"
for package in "$root"/var/cache/apt/archives/*.deb; do
  dpkg-deb -f "$package" > "$root/var/lib/dpkg/status.d/$(dpkg-deb -f "$package" Package)"
done

mkdir -p "$root/etc/ssl/certs"
cat "$root"/usr/share/ca-certificates/mozilla/*.crt > "$root/etc/ssl/certs/ca-certificates.crt"
printf '%s\n' root:x:0:0:root:/root:/sbin/nologin nonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin > "$root/etc/passwd"
printf '%s\n' root:x:0: nonroot:x:65532: > "$root/etc/group"
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"

# Nothing of the machine that it was made on; licences stay.
rm -rf "$root"/etc/apt/sources.list* "$root/usr/share/man" "$root/usr/share/locale" "$root/usr/share/info" \
  "$root/usr/share/lintian" "$root/usr/share/bash-completion" "$root/usr/share/perl5"
find "$root/usr/share/doc" -type f ! -name copyright -delete
