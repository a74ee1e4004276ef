#compdef mica
# Completions of mica for zsh: asks mica what can follow the words typed so far.
_mica() {
    local line
    local -a lines candidates
    lines=("${(@f)$(${words[1]} __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for line in $lines; do
        case $line in
        '@program '*)
            # The words from this one on are another program's: they are completed as if it had been typed alone.
            integer first=$((${line#@program } + 2))
            words=("${(@)words[first,-1]}")
            ((CURRENT -= first - 1))
            _normal
            return
            ;;
        @files)
            _files
            return
            ;;
        *)
            candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
            ;;
        esac
    done
    _describe mica candidates
}

if [ "$funcstack[1]" = "_mica" ]; then
    _mica "$@"
else
    compdef _mica mica
fi
