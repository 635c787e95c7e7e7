rule tokenization_tokenizer:
    """Train or import the tokenizer."""
    input:
        DAG.inputs("tokenization.tokenizer"),
    output:
        DAG.stamp("tokenization.tokenizer"),
    log:
        DAG.log("tokenization.tokenizer"),
    benchmark:
        DAG.benchmark("tokenization.tokenizer")
    conda:
        "../environment.yml"
    threads: DAG.threads("tokenization.tokenizer")
    resources:
        mem_mb=DAG.memory("tokenization.tokenizer"),
    shell:
        "{JOB} --plan {PLAN} --node tokenization.tokenizer --work {wildcards.work} > {log:q} 2>&1"


rule tokenization:
    """Encode documents into token shards."""
    input:
        DAG.inputs("tokenization"),
    output:
        DAG.stamp("tokenization"),
    log:
        DAG.log("tokenization"),
    benchmark:
        DAG.benchmark("tokenization")
    conda:
        "../environment.yml"
    threads: DAG.threads("tokenization")
    resources:
        mem_mb=DAG.memory("tokenization"),
    shell:
        "{JOB} --plan {PLAN} --node tokenization --work {wildcards.work} > {log:q} 2>&1"


rule tokenization_heldout:
    """Encode the held-out documents."""
    input:
        DAG.inputs("tokenization.heldout"),
    output:
        DAG.stamp("tokenization.heldout"),
    log:
        DAG.log("tokenization.heldout"),
    benchmark:
        DAG.benchmark("tokenization.heldout")
    conda:
        "../environment.yml"
    threads: DAG.threads("tokenization.heldout")
    resources:
        mem_mb=DAG.memory("tokenization.heldout"),
    shell:
        "{JOB} --plan {PLAN} --node tokenization.heldout --work {wildcards.work} > {log:q} 2>&1"
