# Completions of mica for bash: asks mica what can follow the words typed so far.
_mica() {
    local line
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
        "@program "*)
            _mica_program "$((${line#@program } + 1))"
            return
            ;;
        @files)
            compopt -o default 2>/dev/null
            return
            ;;
        *)
            COMPREPLY+=("${line%%$'\t'*}")
            ;;
        esac
    done < <("${COMP_WORDS[0]}" __complete -- "${words[@]}" 2>/dev/null)
}

# The words from this one on are another program's: they are completed as if it had been typed alone.
_mica_program() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif ((COMP_CWORD == $1)); then
        mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
        compopt -o default 2>/dev/null
    else
        compopt -o default 2>/dev/null
    fi
}

complete -F _mica mica
