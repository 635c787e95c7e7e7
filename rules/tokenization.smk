rule tokenization_tokenizer:
    """Train or import the tokenizer."""
    input:
        RUN.inputs("tokenization.tokenizer"),
    output:
        RUN.stamp("tokenization.tokenizer"),
    log:
        RUN.log("tokenization.tokenizer"),
    benchmark:
        RUN.benchmark("tokenization.tokenizer")
    conda:
        "../environment.yml"
    threads: RUN.threads("tokenization.tokenizer")
    resources:
        **RUN.resources("tokenization.tokenizer"),
    params:
        job=JOB,
    shell:
        "{params.job} --node tokenization.tokenizer --work {wildcards.work} > {log:q} 2>&1"


rule tokenization:
    """Encode documents into token shards."""
    input:
        RUN.inputs("tokenization"),
    output:
        RUN.stamp("tokenization"),
    log:
        RUN.log("tokenization"),
    benchmark:
        RUN.benchmark("tokenization")
    conda:
        "../environment.yml"
    threads: RUN.threads("tokenization")
    resources:
        **RUN.resources("tokenization"),
    params:
        job=JOB,
    shell:
        "{params.job} --node tokenization --work {wildcards.work} > {log:q} 2>&1"


rule tokenization_heldout:
    """Encode the held-out documents."""
    input:
        RUN.inputs("tokenization.heldout"),
    output:
        RUN.stamp("tokenization.heldout"),
    log:
        RUN.log("tokenization.heldout"),
    benchmark:
        RUN.benchmark("tokenization.heldout")
    conda:
        "../environment.yml"
    threads: RUN.threads("tokenization.heldout")
    resources:
        **RUN.resources("tokenization.heldout"),
    params:
        job=JOB,
    shell:
        "{params.job} --node tokenization.heldout --work {wildcards.work} > {log:q} 2>&1"
