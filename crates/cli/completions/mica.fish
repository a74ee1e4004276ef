# Completions of mica for fish: asks mica what can follow the words typed so far.
function __mica_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] __complete -- $words[2..] "$current" 2>/dev/null)
        switch $line
            case '@program *'
                # The words from this one on are another program's: they are completed as if it had been typed alone.
                set -l first (math (string replace '@program ' '' -- $line) + 2)
                set -l typed (string escape -- $words[$first..])
                complete -C (string join ' ' -- $typed "$current")
                return
            case '@files'
                __fish_complete_path "$current"
                return
            case '*'
                echo $line
        end
    end
end

complete -c mica -f -a '(__mica_complete)'
