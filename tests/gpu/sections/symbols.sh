# Every function the real driver exports is found through Mica's libcuda.so.1, those newer than Mica included.
python3 "$gpu/tools/symbols.py" list >"$work/names" 2>"$work/err" || fail symbols "the driver's names cannot be listed: $(tail -n 1 "$work/err")"
symbols_inside() { "$mica" run -m 2GiB -- python3 "$gpu/tools/symbols.py" <"$work/names"; }
check "dlsym of every name" symbols_inside
