%(complete_func)s() {
    local type value whole line="${COMP_LINE:0:COMP_POINT}" special='*[!A-Za-z0-9_./:=,@%%+-]*'
    local current="${COMP_WORDS[COMP_CWORD]}" kept='' has_files=''
    whole="${line##*[[:space:]]}"
    [[ $current == [:=] ]] && current=''
    [[ $whole == *"$current" ]] && kept="${whole%%"$current"}"
    COMPREPLY=()
    while IFS=',' read -r type value; do
        case $type in
            plain)
                value="${value#"$kept"}"
                [[ $value == $special ]] && printf -v value '%%q' "$value"
                COMPREPLY+=("$value") ;;
            dir) compopt -o dirnames ;;
            file) has_files=1 ;;
        esac
    done < <(COMP_WORDS="$line" %(complete_var)s=bash_complete "$1" 2>/dev/null)
    if [[ $has_files ]]; then
        if (( ${#COMPREPLY[@]} )); then
            while IFS= read -r value; do
                [[ -d $value ]] && value+=/
                [[ $value == $special ]] && printf -v value '%%q' "$value"
                COMPREPLY+=("$value")
            done < <(compgen -f -- "$current")
            [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace
        else
            compopt -o default
        fi
    fi
    return 0
}
complete -o nosort -F %(complete_func)s %(prog_name)s
